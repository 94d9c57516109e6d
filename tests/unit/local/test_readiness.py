from proxy.local.ports import free_ports
from proxy.local.readiness import known_brokers


def test_nobody_there() -> None:
    (port,) = free_ports(1)
    assert known_brokers(f"127.0.0.1:{port}") == set()
