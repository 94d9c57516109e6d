"""TLS of the listeners, without sockets: what the configuration's keys and files mean. Only ``contexts`` does IO.

certificates.py      reads subjects and expiry dates of certificates.
tls_settings.py      what the keys of one side of a listener say.
cipher_suites.py     the names of cipher suites, Kafka's (IANA) and OpenSSL's.
java_patterns.py     regular expressions and replacements of Java for Python's ``re``.
principal_mapping.py Kafka's ``ssl.principal.mapping.rules``: from the subject of a certificate to a principal.
contexts.py          the ``ssl.SSLContext`` of one side of a listener, or why there can be none.
"""
