import pytest

from proxy.local.download import explain
from proxy.local.pins import Pin

MISSING = [Pin("org.example", f"jar{n}", "1.0", "0" * 64, 2_000_000) for n in range(5)]


@pytest.mark.parametrize(
    ("said", "reported"),
    [
        (
            "javax.net.ssl.SSLHandshakeException: PKIX path building failed: …: unable to find valid",
            "does not trust the TLS certificate",
        ),
        ("Server access error at url … (java.net.ConnectException: Connection refused)", "cannot be reached"),
        (
            "You probably access the destination server through a proxy server that is not well configured.",
            "cannot be reached",
        ),
        ("java.net.UnknownHostException: x: Temporary failure in name resolution", "cannot be reached"),
        ("java.io.IOException: No space left on device", "the disk is full; 11 MB"),
        ("SERVER ERROR: Bad Gateway url=…", "failed while org.example:jar0:1.0 was fetched"),
        (
            ":: org.example#jar0;1.0: not found",
            "does not serve org.example:jar0:1.0, org.example:jar1:1.0, org.example:jar2:1.0 and others",
        ),
    ],
)
def test_what_a_client_says_becomes_a_sentence(said: str, reported: str) -> None:
    sentence = explain(said, MISSING)
    assert reported in sentence
    assert "\n" not in sentence
