"""What others read: ``focus.py`` and ``opencost.py`` of the table ``cost``, ``prometheus.py`` of objectives. No JVM."""
