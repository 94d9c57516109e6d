import ssl

from proxy.errors import Side

class TlsStream:
    """TLS towards one peer, from its handshake to its end. Belongs to the event loop's thread.

    ``established``: whether the handshake is complete. ``peer_closed``: whether the peer has ended what it sends.
    ``side``: which peer it is.
    """

    def __init__(
        self, context: ssl.SSLContext, server_name: str | None = None, earlier: TlsStream | None = None
    ) -> None:
        """``server_name``: the name of the broker; None for a client, towards which this process is the server.
        ``earlier``: a stream to the same broker, whose session is resumed if the broker agrees. One of another context
        is passed over."""

    @property
    def established(self) -> bool: ...
    @property
    def peer_closed(self) -> bool: ...
    @property
    def side(self) -> Side: ...
    @property
    def version(self) -> str:
        """The version of TLS, such as ``TLSv1.3``."""

    @property
    def cipher(self) -> str:
        """OpenSSL's name of the cipher suite."""

    @property
    def is_resumed(self) -> bool:
        """Whether the handshake went on with an earlier session."""

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate of the peer as DER, None without one. It was verified."""

    def shake_hands(self, received: bytes) -> bytes:
        """Take bytes of the peer, and return those that are to be sent to it. Then ask ``check``, ``established``.

        Tickets of TLS 1.3 for a client are sent with the first data.
        """

    def check(self) -> None:
        """Raise PeerError with the reason ``tls_failed`` if the peer has sent what is no valid TLS."""

    def decrypt(self, received: bytes) -> bytes:
        """Return the plaintext of bytes of the peer. Raises PeerError."""

    def encrypt(self, data: bytes) -> bytes:
        """Return ``data`` as records."""
