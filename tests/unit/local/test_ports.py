import socket

import pytest

from proxy.errors import LocalError
from proxy.local import ports


@pytest.mark.promise("local-cluster.md", "Ports of a local cluster are free, below those that Linux gives away.")
def test_ports_are_different_free_and_outside_of_what_linux_gives_away() -> None:
    chosen = ports.free_ports(50)
    assert len(set(chosen)) == 50
    assert all(ports.is_free(port) and ports.FIRST <= port <= ports.LAST for port in chosen)
    with socket.create_server((ports.HOST, chosen[0])):
        assert not ports.is_free(chosen[0])
    assert ports.is_free(chosen[0])


def test_what_is_to_be_avoided_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: True)  # whoever listens there
    monkeypatch.setattr(ports, "FIRST", 20_000)
    monkeypatch.setattr(ports, "LAST", 20_999)
    taken = range(20_000, 20_990)
    assert not set(ports.free_ports(5, avoid=taken)) & set(taken)
    with pytest.raises(LocalError, match="not 11 free ports"):
        ports.free_ports(11, avoid=taken)


def test_a_port_is_not_chosen_again_before_all_others_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: True)
    monkeypatch.setattr(ports, "FIRST", 21_000)
    monkeypatch.setattr(ports, "LAST", 21_049)
    monkeypatch.setattr(ports, "_given", {})
    chosen = [port for _ in range(10) for port in ports.free_ports(4)]
    assert len(set(chosen)) == 40
    assert set(ports.free_ports(10)).isdisjoint(chosen)
    assert set(ports.free_ports(4)) == set(chosen[:4]), "those of longest ago"
