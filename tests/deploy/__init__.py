"""Everything of ``deploy/``, built and run for real. What takes long is run by ``make deploy-test``."""
