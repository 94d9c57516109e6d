from proxy.compiled.exchange import Kind

def kind_of(api_key: int, version: int, response: bool) -> Kind:
    """Return what reads the bodies of this api and version; ``NO_WALKER`` where there is nothing."""
