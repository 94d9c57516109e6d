from proxy.local.ports import free_ports
from proxy.local.probe import brokers


def test_nobody_there() -> None:
    (port,) = free_ports(1)
    assert brokers(f"127.0.0.1:{port}") == set()
