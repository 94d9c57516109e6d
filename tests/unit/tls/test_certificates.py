"""What is read of certificates."""

import time

import pytest
from cryptography import x509

from proxy.tls.certificates import first_of, serial_of
from tests.tools.authority import Authority


def test_subject_and_validity_of_a_certificate(tmp_path):
    pair = Authority(tmp_path).issue("a", "CN=alice,OU=Billing,O=Example\\, Inc.,C=DE", days=2)
    found = first_of(pair.certificate.read_text())
    assert found.subject == "CN=alice,OU=Billing,O=Example\\, Inc.,C=DE"
    assert found.not_after == pytest.approx(time.time() + 2 * 86_400, abs=60)
    assert found.not_before < time.time()
    issued = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    assert int(found.serial, 16) == issued.serial_number


@pytest.mark.promise(
    "audit-event.md", "Serial numbers of client certificates are written as `openssl x509` writes them."
)
def test_a_serial_number_is_written_as_openssl_writes_it():
    for content, digits in [
        ("00", "00"),
        ("0102", "0102"),
        ("00fe", "FE"),
        ("0f", "0F"),
        ("ff", "-01"),
        ("", "00"),
        ("7f" * 20, "7F" * 20),
    ]:
        assert serial_of(bytes.fromhex(content)) == digits, (content, digits)
