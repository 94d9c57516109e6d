import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.config import Endpoint, Secret, load, redacted
from proxy.config.quotas import Quotas
from proxy.config.reference import example, pages
from proxy.config.serialization import pack, unpack
from proxy.errors import ConfigError
from tests.tools.example_files import write_example_files

CANARY = "c4n4ry-hunter2"
KEYS = "k1:" + 64 * "a"

ENDPOINT = "(allowed: host:port, port 1–65535)"

MINIMAL = """\
broker.id: 1
listeners:
  - {name: CLIENT, bind: "127.0.0.1:9092", upstream: "127.0.0.1:19092"}
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "sidecar.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def problems(write):
    """Load a text that is wrong, and return the errors."""

    def problems(text: str, **environ: str) -> list[str]:
        with pytest.raises(ConfigError) as raised:
            load(write(text), environ)
        return raised.value.problems

    return problems


def test_defaults(write):
    config = load(write(MINIMAL), {})

    assert config.broker_id == 1
    (listener,) = config.listeners
    assert listener.bind == listener.advertised == Endpoint("127.0.0.1", 9092)
    assert listener.upstream == Endpoint("127.0.0.1", 19092)
    assert listener.security_protocol == "PLAINTEXT"
    assert config.internal_bootstrap_servers is None
    assert config.internal_client_settings() == {}
    assert config.observer_class_names == ()
    assert config.audit.topic == "brokerside-audit"
    assert (config.audit.exclude_topics, config.audit.exclude_principals) == ((), ())
    assert config.audit.producer == {}
    assert config.admin.bind == Endpoint("127.0.0.1", 9644)
    assert config.socket_request_max_bytes == 104_857_600
    assert config.socket_listen_backlog_size == 4096
    assert config.upstream_connect_timeout_ms == 5000
    assert config.connection_setup_timeout_ms == 10_000
    assert config.workers == 1
    assert config.drain_timeout_ms == 10_000
    assert config.observer_shutdown_timeout_ms == 2000
    assert config.log_level == "info"


def test_five_mistakes_give_five_located_lines(problems):
    found = problems(
        """\
broker.id: one
listener: []
listeners:
  - name: CLIENT
    bind: foo
    upstream: 127.0.0.1:70000
log.level: loud
"""
    )

    assert found == [
        "broker.id: 'one' is not a whole number (allowed: 0–2147483647) at line 1, column 1",
        "listener: unknown key (did you mean listeners?) at line 2, column 1",
        "listeners[0].bind: 'foo' is not host:port (allowed: host:port, port 1–65535) at line 5, column 5",
        f"listeners[0].upstream: '127.0.0.1:70000' is not host:port {ENDPOINT} at line 6, column 5",
        "log.level: 'loud' is not known (allowed: debug, info, warning or error) at line 7, column 1",
    ]


@pytest.mark.parametrize("line", ["quotas:", "audit:", "admin:", "internal:", "audit: {producer: }"])
def test_a_section_with_nothing_below_it_is_an_empty_one(write, line):
    assert load(write(f"{MINIMAL}{line}\n"), {}) == load(write(MINIMAL), {})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("broker.id: -1", "broker.id: -1 is out of range"),
        ("broker.id: true", "broker.id: true is not a whole number"),
        ("broker.id: 1.0", "broker.id: 1.0 is not a whole number"),
        ('broker.id: "1"', "broker.id: '1' is not a whole number"),
        ("broker.id:", "broker.id: nothing is not a whole number"),
        ("broker.id: 0x" + "f" * 5000, "broker.id: a huge number is out of range"),
        (
            "socket.listen.backlog.size: 0",
            "socket.listen.backlog.size: 0 is out of range (allowed: 1–65535 connections)",
        ),
        (
            "audit: {spool.path: spool}",
            "audit.spool.path: 'spool' is not an absolute path (allowed: the absolute path of a folder)",
        ),
        (
            "audit: {spool.max.bytes: 1000}",
            "audit.spool.max.bytes: 1000 is out of range (allowed: 16777216–1125899906842624 bytes)",
        ),
        ("audit: {mode: rolled}", "audit.mode: 'rolled' is not known (allowed: event or rollup)"),
        ("drain.timeout.ms: 600001", "drain.timeout.ms: 600001 is out of range (allowed: 0–600000 ms)"),
        ("audit: 1", "audit: 1 is not a mapping"),
        ("audit: {topic: 12}", "audit.topic: 12 is not text"),
        ("audit: {topic: a/b}", "audit.topic: 'a/b' is not a topic's name"),
        ("audit: {topic: ..}", "audit.topic: '..' is not a topic's name"),
        ("audit: {exclude.topics: a}", "audit.exclude.topics: 'a' is not a list"),
        ("audit: {exclude.topics: [a, a b]}", "audit.exclude.topics[1]: 'a b' is not a topic's name"),
        ("audit: {exclude.principals: [alice]}", "audit.exclude.principals[0]: 'alice' is not a principal"),
        ("audit: {producer: zstd}", "audit.producer: the value is not a mapping"),
        ("audit: {producer: {linger.ms: [5]}}", "audit.producer.linger.ms: the value is not a plain value"),
        ("audit: {producer: {ssl.ca.location: /x}}", "audit.producer.ssl.ca.location: cannot be set here"),
        ("internal: {bootstrap.servers: 'a:1'}", "internal.bootstrap.servers: cannot be set here"),
        ("internal.bootstrap.servers: a:1,b", "internal.bootstrap.servers: 'a:1,b' is not host:port"),
        ("observer.class.names: a.b", "observer.class.names[0]: 'a.b' is not package.module:Class"),
        ("observer.class.names: [a:B, a:B]", "observer.class.names[1]: 'a:B' is named twice"),
        ("audit.topic: x", "audit.topic: unknown key (write topic under audit)"),
        ("internal.sasl.username: x", "internal.sasl.username: unknown key (write sasl.username under internal)"),
        ("threads: 4", "threads: unknown key (allowed: admin, audit, broker.id,"),
        ("workers: 0", "workers: 0 is out of range (allowed: 1–64 processes)"),
        ("connection.setup.timeout.ms: 0", "connection.setup.timeout.ms: 0 is out of range (allowed: 100–3600000 ms)"),
        ("workers: 65", "workers: 65 is out of range (allowed: 1–64 processes)"),
        ("log.level: !!python/name:os.system x", "log.level: is a value that YAML cannot read"),
        ("[a, b]: c", "holds a key that is not text"),
    ],
)
def test_one_wrong_line(problems, line, expected):
    base = MINIMAL if not line.startswith("broker.id") else MINIMAL.replace("broker.id: 1\n", "")
    if line.startswith("observer.class.names"):
        base += "internal.bootstrap.servers: 127.0.0.1:19094\n"

    (problem,) = problems(base + line + "\n")

    assert expected in problem
    assert f"line {base.count(chr(10)) + 1}" in problem


@pytest.mark.parametrize(
    "address",
    [
        "",
        "9092",
        ":9092",
        "*:9092",
        "a:0",
        "a:65536",
        "a:-1",
        "a:9092x",
        "a b:1",
        "::1:9092",
        "[::1]",
        "[x]:1",
        "1.2.3:80",
        "256.0.0.1:80",
        "a:９０９２",
        "http://a:80",
        "-a:1",
        "a:1\n",
    ],
)
def test_not_an_address(address):
    with pytest.raises(ValueError, match=r"is not host:port"):
        Endpoint.parse(address)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("kafka-1.example:9092", "kafka-1.example", 9092), ("0.0.0.0:1", "0.0.0.0", 1), ("[::1]:65535", "::1", 65535)],
)
def test_address(text, host, port):
    endpoint = Endpoint.parse(text)

    assert endpoint == Endpoint(host, port)
    assert str(endpoint) == text


def test_missing_keys_are_named(problems):
    assert problems("{}") == [
        "broker.id: is missing (allowed: 0–2147483647)",
        "listeners: is missing (allowed: a list of at least one listener, each with name, bind and upstream)",
    ]
    assert problems("broker.id: 1\nlisteners: [{}]") == [
        "listeners[0].name: is missing (allowed: one or more of A-Z a-z 0-9 _ . -) at line 2, column 13",
        "listeners[0].bind: is missing (allowed: host:port, port 1–65535) at line 2, column 13",
        "listeners[0].upstream: is missing (allowed: host:port, port 1–65535) at line 2, column 13",
    ]
    assert "listeners: the value is empty" in problems("broker.id: 1\nlisteners: []")[0]


def test_a_key_given_twice(problems):
    assert problems(MINIMAL + "admin: {bind: 'a:1'}\nbroker.id: 2\n") == [
        "broker.id: is given twice (allowed: once) at lines 1 and 5"
    ]


def test_a_second_document_is_refused(problems):
    assert problems(MINIMAL + "---\nbroker.id: 2\n") == [
        "holds a second YAML document at line 4, column 1 (allowed: one)"
    ]


def test_a_file_that_is_not_yaml_is_located(problems):
    (problem,) = problems(MINIMAL + "audit: [\n")

    assert re.fullmatch(r"is not YAML: .* at line 5, column 1", problem)


@pytest.mark.parametrize("text", ["just text", "- a list"])
def test_a_file_that_is_no_mapping(problems, text):
    assert problems(text) == ["is not a mapping of keys to values (allowed: lines such as broker.id: 1)"]


def test_aliases_of_aliases_are_bounded(problems):
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))

    assert problems(bomb) == ["holds more than 10000 values, aliases expanded"]
    assert problems("a: &a [*a]") == ["is nested too deeply, or holds an alias of itself"]
    assert problems("[" * 5000) == ["is nested too deeply, or holds an alias of itself"]


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml: 1 problem\(s\)\n  cannot be read: No such file or directory"):
        load(tmp_path / "absent.yaml", {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path, {})
    (tmp_path / "latin").write_bytes(b"a: \xe9")
    with pytest.raises(ConfigError, match="is not text in UTF-8: byte 3"):
        load(tmp_path / "latin", {})


def two_listeners(bind: str, upstream: str = "10.0.0.9:19092", *, name: str = "OTHER", more: str = "") -> str:
    return MINIMAL + f"  - {{name: {name}, bind: '{bind}', upstream: '{upstream}'}}\n{more}"


def test_listeners_need_their_own_name(problems):
    assert problems(two_listeners("127.0.0.1:9093", name="client")) == [
        "listeners[1].name: 'client' is also the name of listeners[0] (allowed: a name of its own) at line 4, column 6"
    ]


@pytest.mark.parametrize("bind", ["127.0.0.1:9092", "0.0.0.0:9092", "[::]:9092", "localhost:9092"])
def test_an_address_is_bound_once(problems, bind):
    taken = f"{bind} is taken by listeners[0].bind 127.0.0.1:9092 (allowed: an address of its own) at line 4"

    assert problems(two_listeners(bind)) == [f"listeners[1].bind: {taken}, column 19"]
    assert problems(MINIMAL + f"admin: {{bind: '{bind}'}}") == [f"admin.bind: {taken}, column 9"]


def test_the_default_of_admin_counts_too(problems):
    (problem,) = problems(MINIMAL.replace("9092", "9644"))

    assert problem.startswith("admin.bind: 127.0.0.1:9644 is taken by listeners[0].bind")


def test_other_addresses_may_share_a_port(write):
    config = load(write(two_listeners("127.0.0.2:9092", upstream="10.0.0.9:9092")), {})

    assert [str(listener.bind) for listener in config.listeners] == ["127.0.0.1:9092", "127.0.0.2:9092"]


@pytest.mark.parametrize("upstream", ["127.0.0.1:9092", "localhost:9092", "127.0.0.1:9093", "kafka-1:9094"])
def test_an_upstream_may_not_lead_back(problems, upstream):
    text = f"""\
broker.id: 1
listeners:
  - {{name: A, bind: 127.0.0.1:9092, upstream: "{upstream}"}}
  - {{name: B, bind: 0.0.0.0:9093, advertised: kafka-1:9094, upstream: 127.0.0.1:19093}}
"""
    (problem,) = problems(text.replace("127.0.0.1:9092, ", '"127.0.0.1:9092", '))

    assert problem.startswith(f"listeners[0].upstream: {upstream} leads back to listeners[")
    assert problem.endswith("at line 3, column 39")


def test_the_own_traffic_may_not_come_in_by_the_door_it_watches(problems):
    (problem,) = problems(MINIMAL + "internal.bootstrap.servers: 10.0.0.1:9092, localhost:9092\n")

    assert problem.startswith("internal.bootstrap.servers: localhost:9092 leads back to listeners[0].bind (allowed:")


def test_observers_need_the_cluster(problems, write):
    (problem,) = problems(MINIMAL + "observer.class.names: [a.b:C]\n")
    assert problem.startswith("internal.bootstrap.servers: is missing, and observers need it (allowed: ")

    config = load(write(MINIMAL + "internal.bootstrap.servers: h:1, i:2\nobserver.class.names: a.b:C, d:E\n"), {})
    assert config.observer_class_names == ("a.b:C", "d:E")
    assert config.internal_bootstrap_servers == "h:1,i:2"


def test_cross_checks_are_made_beside_wrong_values(problems):
    found = problems(two_listeners("127.0.0.1:9092", more="broker.id: 3\nlog.level: x\n"))

    assert [problem.split(":")[0] for problem in found] == ["broker.id", "listeners[1].bind", "log.level"]


class TestEnvironment:
    def test_overrides_the_file(self, write):
        environ = {
            "BROKERSIDE_BROKER_ID": "7",
            "BROKERSIDE_ADMIN__BIND": "127.0.0.1:1234",
            "BROKERSIDE_AUDIT__TOPIC": "123",
            "BROKERSIDE_AUDIT__EXCLUDE_TOPICS": "[a, b]",
            "BROKERSIDE_AUDIT__PRODUCER__LINGER_MS": "5",
            "BROKERSIDE_INTERNAL_BOOTSTRAP_SERVERS": "h:1",
            "BROKERSIDE_INTERNAL__SASL_USERNAME": "0123",
            "BROKERSIDE_OBSERVER_CLASS_NAMES": "a:B,c:D",
            "PATH": "/bin",
        }
        config = load(write(MINIMAL + "audit: {topic: x, exclude.topics: [c]}\n"), environ)

        assert config.broker_id == 7
        assert config.admin.bind == Endpoint("127.0.0.1", 1234)
        assert config.audit.topic == "123"
        assert config.audit.exclude_topics == ("a", "b")
        assert config.audit.producer == {"linger.ms": "5"}
        assert config.internal_client_settings() == {"bootstrap.servers": "h:1", "sasl.username": "0123"}
        assert config.observer_class_names == ("a:B", "c:D")

    def test_names_the_variable_and_not_the_line(self, problems):
        found = problems(
            MINIMAL + "log.level: info\n", BROKERSIDE_LOG_LEVEL="loud", BROKERSIDE_LISTENERS="[{name: A, bind: x}]"
        )
        assert found == [
            "listeners[0].bind: 'x' is not host:port (allowed: host:port, port 1–65535) from BROKERSIDE_LISTENERS",
            "listeners[0].upstream: is missing (allowed: host:port, port 1–65535) from BROKERSIDE_LISTENERS",
            "log.level: 'loud' is not known (allowed: debug, info, warning or error) from BROKERSIDE_LOG_LEVEL",
        ]

    def test_a_variable_that_is_no_key(self, problems):
        assert problems(MINIMAL, BROKERSIDE_ADMN__BIND="a:1", BROKERSIDE_COLOURS="x") == [
            "BROKERSIDE_ADMN__BIND: is set, and is no key (did you mean BROKERSIDE_ADMIN__BIND?)",
            "BROKERSIDE_COLOURS: is set, and is no key (allowed: keys of docs/config.md as BROKERSIDE_SECTION__KEY)",
        ]

    def test_a_variable_that_is_no_yaml(self, problems):
        assert problems(MINIMAL, BROKERSIDE_BROKER_ID="[") == ["BROKERSIDE_BROKER_ID: its value is not YAML"]

    def test_a_section_that_is_no_mapping_stays_a_mistake(self, problems):
        assert problems(MINIMAL + "admin: x\n", BROKERSIDE_ADMIN__BIND="a:1") == [
            "admin: 'x' is not a mapping (allowed: the keys of admin) at line 4, column 1"
        ]

    def test_what_others_set_is_left_alone(self, write):
        environ = {
            "BROKERSIDE_CACHE": "/c",
            "BROKERSIDE_MAVEN_REPOSITORY": "u",
            "BROKERSIDE_SERVICE_HOST": "10.0.0.1",
            "BROKERSIDE_SERVICE_PORT": "9092",
            "BROKERSIDE_SERVICE_PORT_CLIENT": "9092",
            "BROKERSIDE_PORT": "tcp://10.0.0.1:9092",
            "BROKERSIDE_ADMIN_PORT_9644_TCP": "tcp://10.0.0.1:9644",
            "BROKERSIDE_ADMIN_PORT_9644_TCP_ADDR": "10.0.0.1",
        }
        assert load(write(MINIMAL), environ) == load(write(MINIMAL), {})

    def test_but_a_slip_that_only_looks_like_theirs_is_reported(self, problems):
        assert problems(MINIMAL, BROKERSIDE_ADMIN_PORT="9700")[0].startswith("BROKERSIDE_ADMIN_PORT: is set, and is no")


class TestSecrets:
    def test_come_from_files(self, write, tmp_path):
        (tmp_path / "password").write_text(CANARY + "\n")
        config = load(write(MINIMAL + "internal: {sasl.password: {file: password}, enable.x: true, n: 5}\n"), {})

        assert config.internal_client_settings() == {"sasl.password": CANARY, "enable.x": "true", "n": "5"}

    def test_or_from_variables(self, write):
        config = load(write(MINIMAL), {"BROKERSIDE_INTERNAL__SASL_PASSWORD": CANARY})

        assert config.internal_client_settings() == {"sasl.password": CANARY}

    def test_show_themselves_nowhere(self, write):
        config = load(write(MINIMAL), {"BROKERSIDE_INTERNAL__SASL_PASSWORD": CANARY})

        shown = [
            repr(config),
            str(config),
            config.model_dump_json(),
            json.dumps(redacted(config)),
            repr(config.internal),
        ]
        assert not [text for text in shown if CANARY in text]
        assert redacted(config)["internal"] == {"sasl.password": "***"}
        secret = Secret(CANARY)
        assert (str(secret), repr(secret), f"{secret}", f"{secret!r}") == ("***",) * 4

    def test_may_not_stand_in_the_file_and_are_not_quoted(self, problems):
        (problem,) = problems(MINIMAL + f"internal: {{sasl.password: {CANARY}}}\n")

        assert problem == (
            "internal.sasl.password: must not stand in the configuration (allowed: {file: PATH}, "
            "or the variable BROKERSIDE_INTERNAL__SASL_PASSWORD) at line 4, column 12"
        )

    @pytest.mark.parametrize(
        "line",
        [
            f"internal: {{ssl.key.pem: '{CANARY}', sasl.username: ['{CANARY}']}}",
            f"internal: {CANARY}",
            f"internal: {{sasl.password: *{CANARY}}}",
            f"internal: {{sasl.password: !{CANARY} x}}",
            f"internal: {{sasl.password: {{file: [{CANARY}]}}}}",
            f"internal.sasl.password: {CANARY}",
            f"sasl.password: {CANARY}",
            f"audit: {{producer: {{sasl.password: {CANARY}}}}}",
            f"admin: {{sasl.password: {CANARY}}}",
            f"admin: {{bind: {{sasl.password: {CANARY}}}}}",
        ],
    )
    def test_are_not_quoted_wherever_they_stand_by_mistake(self, write, line):
        with pytest.raises(ConfigError) as raised:
            load(write(MINIMAL + line + "\n"), {})

        assert CANARY not in str(raised.value)

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (None, "file 'p' cannot be read: No such file or directory"),
            (b"", "file 'p' holds 0 bytes (allowed: 1–65536)"),
            (b"\n", "file 'p' holds 1 bytes (allowed: 1–65536)"),
            (b"x" * 65_537, "file 'p' holds 65537 bytes (allowed: 1–65536)"),
            (b"\xff", "file 'p' is not text in UTF-8"),
        ],
    )
    def test_files_that_hold_none(self, problems, tmp_path, content, expected):
        if content is not None:
            (tmp_path / "p").write_bytes(content)

        (problem,) = problems(MINIMAL + "internal: {sasl.password: {file: p}}\n")

        assert problem.startswith(f"internal.sasl.password: {expected}")

    def test_a_public_certificate_is_none(self, write):
        config = load(write(MINIMAL + "internal: {ssl.ca.pem: public}\n"), {})

        assert config.internal_client_settings() == {"ssl.ca.pem": "public"}


def test_a_config_does_not_change(write):
    config = load(write(MINIMAL), {})

    with pytest.raises(ValueError, match="frozen"):
        config.broker_id = 2


def test_redacted_can_be_loaded_again(write):
    config = load(write(MINIMAL + "admin: {bind: '[::1]:9700'}\naudit: {exclude.topics: [a]}\n"), {})

    assert load(write(yaml.safe_dump(redacted(config))), {}) == config


EXAMPLE = example()
LINES = EXAMPLE.splitlines()
JUNK = st.sampled_from(["", "-", ":", "[", "{", "*x", "&x", "!x", "'", "\t", "0x9", "null", "a:1", "\x00", "..", "%"])


@settings(max_examples=200, deadline=None)
@given(line=st.integers(0, len(LINES) - 1), start=st.integers(0, 40), stop=st.integers(0, 40), junk=JUNK)
def test_a_damaged_file_is_loaded_or_explained(tmp_path_factory, line, start, stop, junk):
    lines = list(LINES)
    lines[line] = lines[line][:start] + junk + lines[line][stop:]
    folder = tmp_path_factory.mktemp("damaged")
    write_example_files(folder, CANARY, KEYS)
    (folder / "c.yaml").write_text("\n".join(lines))

    problems = ["none, it loads"]
    try:
        load(folder / "c.yaml", {})
    except ConfigError as error:
        problems = error.problems

    assert problems
    assert not [problem for problem in problems if "\n" in problem or CANARY in problem]


def test_the_example_loads_and_uses_every_key(write, tmp_path):
    write_example_files(tmp_path, CANARY, KEYS)

    config = load(write(EXAMPLE), {})

    def keys(value):
        return {k: keys(v) for k, v in value.items()} if isinstance(value, dict) else None

    written = yaml.safe_load(EXAMPLE)
    written["internal"]["sasl.password"] = "***"
    written["tags"]["rack"] = written.pop("tag.rack")
    assert keys(redacted(config)) == keys(written)
    assert set(redacted(config)["listeners"][0]) == set(written["listeners"][0])


def test_each_key_has_a_heading_on_one_page():
    index, *described = [text for _, text in sorted(pages().items(), key=lambda page: page[0].count("/"))]

    headings = re.findall(r"^## `(.+)`$", "\n".join(described), re.MULTILINE)

    assert sorted(headings) == sorted(set(headings)) == sorted(re.findall(r"^\| \[`(.+?)`\]", index, re.MULTILINE))
    assert {"listeners[].bind", "quotas.max.connections.per.ip"} < set(headings)


def test_a_configuration_arrives_in_another_process_as_it_was(write, tmp_path):
    (tmp_path / "password").write_text(CANARY)
    settings = "internal: {sasl.username: brokerside, sasl.password: {file: password}, enable.ssl: false}\n"
    quotas = "quotas: {max.connections: 5}\n"
    config = load(write(MINIMAL + settings + quotas), {"BROKERSIDE_ADMIN__BIND": "[::1]:9000"})

    arrived = unpack(pack(config))

    assert arrived == config.model_copy(update={"quotas": arrived.quotas})
    assert arrived.quotas == Quotas(), "no worker needs them"
    assert arrived.internal_client_settings()["sasl.password"] == CANARY
    assert CANARY not in repr(arrived)
    stored = load(write(MINIMAL + "internal.bootstrap.servers: 127.0.0.1:9\nquotas: {ip.store: broker}\n"), {})
    assert unpack(pack(stored)).quotas.ip_store == "broker"
    write_example_files(tmp_path, CANARY, KEYS)
    example = load(write(EXAMPLE), {})
    arrived = unpack(pack(example))
    assert arrived == example.model_copy(update={"quotas": arrived.quotas})
    assert arrived.audit.hmac_keys_file.reveal() == arrived.registry.hmac_keys_file.reveal() == KEYS


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "holds 0 keys (allowed: 1–8)"),
        (b"\xff", "is not text in UTF-8"),
        (b"k1", "line 1 is not ID:KEY (allowed: an id of A-Z a-z 0-9 _ . -, a key without spaces)"),
        (b"# keys\nk1:" + CANARY.encode(), "line 2: the key of 'k1' is too short (allowed: 32 bytes or more)"),
        (2 * (b"k1:" + 32 * b"a" + b"\n"), "line 2: the id 'k1' is given twice (allowed: once)"),
    ],
)
@pytest.mark.parametrize("section", ["audit", "registry"])
def test_a_file_of_hmac_keys_that_is_wrong_is_a_mistake(problems, tmp_path, content, wrong, section):
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    (problem,) = problems(MINIMAL + f"{section}: {{hmac.keys.file: keys}}\n")
    assert problem.startswith(f"{section}.hmac.keys.file: file 'keys' {wrong} at line ")
    assert CANARY not in problem
