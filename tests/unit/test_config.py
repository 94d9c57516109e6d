"""The configuration's file, its environment and its secrets: what is read, and what is said of every mistake."""

import json
import re

import pytest
import yaml

from proxy.config import Config, Endpoint, Secret, load, redacted
from proxy.config.quotas import Quotas
from proxy.config.reference import example, pages
from proxy.config.serialization import pack, unpack
from proxy.errors import ConfigError, LocalError
from proxy.interceptors.tags import TAGS_BY_NAME
from proxy.start_checks import check_consumers
from tests.tools.fragments import write_example_files

CANARY = "c4n4ry-hunter2"
KEYS = "k1:" + 64 * "a"

ENDPOINT = "(allowed: host:port, port 1–65535)"

MINIMAL = """\
broker.id: 1
listeners:
  - {name: CLIENT, bind: "127.0.0.1:9092", upstream: "127.0.0.1:19092"}
"""
CLUSTER = f"{MINIMAL}internal.bootstrap.servers: 127.0.0.1:19094\n"
TWO = f"""{MINIMAL}\
  - {{name: OTHER, bind: "127.0.0.1:9093", upstream: "127.0.0.1:19093", unsupported.request.response: forward}}
"""


@pytest.fixture
def loaded(tmp_path):
    def loaded(text: str, **environ: str) -> Config:
        path = tmp_path / "sidecar.yaml"
        path.write_text(text)
        return load(path, environ)

    return loaded


@pytest.fixture
def problems(loaded):
    """Load a text that is wrong, and return the errors."""

    def problems(text: str, **environ: str) -> list[str]:
        try:
            loaded(text, **environ)
        except ConfigError as error:
            return error.problems
        raise AssertionError(f"it was loaded: {text}{environ}")

    return problems


@pytest.fixture
def problem(problems):
    def problem(text: str) -> str:
        (only,) = problems(text)
        return only

    return problem


@pytest.mark.promise("config.md", "The broker's id and one listener are enough: other keys have defaults.")
def test_defaults(loaded):
    config = loaded(MINIMAL)

    assert config.broker_id == 1
    (listener,) = config.listeners
    assert listener.bind == listener.advertised == Endpoint("127.0.0.1", 9092)
    assert listener.upstream == Endpoint("127.0.0.1", 19092)
    assert listener.security_protocol == "PLAINTEXT"
    assert config.internal_client_settings() == {}
    assert (config.observer_class_names, config.audit.producer) == ((), {})
    assert (config.audit.topic, config.audit.exclude_topics) == ("brokerside-audit", ())
    assert config.admin.bind == Endpoint("127.0.0.1", 9644)
    assert (config.workers, config.log_level, config.drain_timeout_ms) == (1, "info", 10_000)
    assert config.socket_request_max_bytes == 104_857_600
    with pytest.raises(ValueError, match="frozen"):
        config.broker_id = 2
    for line in ("quotas:", "audit:", "admin:", "internal:", "audit: {producer: }"):
        assert loaded(f"{MINIMAL}{line}\n") == config, f"{line} with nothing below it is an empty section"


@pytest.mark.promise("config.md", "All errors of a file are reported at once, each with its key and place.")
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


WRONG_LINES = [
    ("broker.id: -1", "broker.id: -1 is out of range"),
    ("broker.id: true", "broker.id: true is not a whole number"),
    ('broker.id: "1"', "broker.id: '1' is not a whole number"),
    ("broker.id: 0x" + "f" * 5000, "broker.id: a huge number is out of range"),
    ("socket.listen.backlog.size: 0", "backlog.size: 0 is out of range (allowed: 1–65535 connections)"),
    ("audit: {spool.path: spool}", "'spool' is not an absolute path (allowed: the absolute path of a folder)"),
    ("audit: {spool.max.bytes: 1000}", "1000 is out of range (allowed: 16777216–1125899906842624 bytes)"),
    ("audit: {mode: rolled}", "audit.mode: 'rolled' is not known (allowed: event or rollup)"),
    ("drain.timeout.ms: 600001", "drain.timeout.ms: 600001 is out of range (allowed: 0–600000 ms)"),
    ("audit: {topic: 12}", "audit.topic: 12 is not text"),
    ("audit: {topic: a/b}", "audit.topic: 'a/b' is not a topic's name"),
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
    ("threads: 4", "threads: unknown key (allowed: admin, audit, broker.id,"),
    ("workers: 0", "workers: 0 is out of range (allowed: 1–64 processes)"),
    ("connection.setup.timeout.ms: 0", "0 is out of range (allowed: 100–3600000 ms)"),
    ("log.level: !!python/name:os.system x", "log.level: is a value that YAML cannot read"),
    ("[a, b]: c", "holds a key that is not text"),
    # Text is what UTF-8 has.
    ('tag.rack: "a\\ud800"', "holds a character that UTF-8 does not have (allowed: "),
]
"""A line after those of ``MINIMAL``, or in the place of its first one, and a part of what is said."""


@pytest.mark.promise("config.md", "An unknown key is an error, and so is a value of another type or range.")
def test_one_wrong_line_is_one_mistake_in_that_line(problems):
    for line, expected in WRONG_LINES:
        base = MINIMAL if not line.startswith("broker.id") else MINIMAL.replace("broker.id: 1\n", "")
        if line.startswith("observer.class.names"):
            base += "internal.bootstrap.servers: 127.0.0.1:19094\n"
        found = problems(base + line + "\n")
        assert len(found) == 1, (line[:80], found)
        assert expected in found[0], line[:80]
        assert f"line {base.count(chr(10)) + 1}" in found[0], line[:80]


def test_an_address_is_a_host_and_a_port():
    for text, host, port in (
        ("kafka-1.example:9092", "kafka-1.example", 9092),
        ("0.0.0.0:1", "0.0.0.0", 1),
        ("[::1]:65535", "::1", 65535),
    ):
        endpoint = Endpoint.parse(text)
        assert (endpoint, str(endpoint)) == (Endpoint(host, port), text)
    for text in (
        *("", "9092", ":9092", "*:9092", "a:0", "a:65536", "a:-1", "a:9092x", "a b:1", "::1:9092", "[::1]", "[x]:1"),
        *("1.2.3:80", "256.0.0.1:80", "a:９０９２", "http://a:80", "-a:1", "a:1\n"),
    ):
        with pytest.raises(ValueError, match=r"is not host:port"):
            print(text, Endpoint.parse(text))


def test_mistakes_of_the_file_itself_are_named_and_located(problems, tmp_path):
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    no_mapping = "is not a mapping of keys to values (allowed: lines such as broker.id: 1)"
    deep = "is nested too deeply, or holds an alias of itself"
    for text, expected in (
        (
            "{}",
            [
                "broker.id: is missing (allowed: 0–2147483647)",
                "listeners: is missing (allowed: a list of at least one listener, each with name, bind and upstream)",
            ],
        ),
        (
            MINIMAL + "admin: {bind: 'a:1'}\nbroker.id: 2\n",
            ["broker.id: is given twice (allowed: once) at lines 1 and 5"],
        ),
        (MINIMAL + "---\nbroker.id: 2\n", ["holds a second YAML document at line 4, column 1 (allowed: one)"]),
        ("just text", [no_mapping]),
        (bomb, ["holds more than 10000 values, aliases expanded"]),
        ("a: &a [*a]", [deep]),
    ):
        assert problems(text) == expected, text[:80]
    (problem,) = problems(MINIMAL + "audit: [\n")
    assert re.fullmatch(r"is not YAML: .* at line 5, column 1", problem)
    with pytest.raises(ConfigError, match=r"absent\.yaml: 1 problem\(s\)\n  cannot be read: No such file or directory"):
        load(tmp_path / "absent.yaml", {})
    (tmp_path / "latin").write_bytes(b"a: \xe9")
    with pytest.raises(ConfigError, match="is not text in UTF-8: byte 3"):
        load(tmp_path / "latin", {})


def two_listeners(bind: str, upstream: str = "10.0.0.9:19092", *, name: str = "OTHER", more: str = "") -> str:
    return MINIMAL + f"  - {{name: {name}, bind: '{bind}', upstream: '{upstream}', advertised: 'kafka-1:9'}}\n{more}"


@pytest.mark.promise("config/listeners.md", "An address that no client can dial is not advertised.")
def test_no_wildcard_is_advertised(problems):
    for wildcard in ("0.0.0.0:9093", "[::]:9093"):
        for given, said in (("", f"is missing, and bind is {wildcard}"), (wildcard, f"{wildcard} is no address")):
            more = f", advertised: '{given}'" if given else ""
            listener = f"{{name: OTHER, bind: '{wildcard}', upstream: 'k:1'{more}}}"
            (problem,) = problems(f"{MINIMAL}  - {listener}\n")
            assert problem.startswith(f"listeners[1].advertised: {said}")


@pytest.mark.promise("config/listeners.md", "Two listeners cannot have one name or one address.")
def test_a_name_and_an_address_belong_to_one_listener(problems, loaded):
    assert problems(two_listeners("127.0.0.1:9093", name="client")) == [
        "listeners[1].name: 'client' is also the name of listeners[0] (allowed: a name of its own) at line 4, column 6"
    ]
    for bind in ("127.0.0.1:9092", "0.0.0.0:9092", "[::]:9092", "localhost:9092"):
        taken = f"{bind} is taken by listeners[0].bind 127.0.0.1:9092 (allowed: an address of its own) at line 4"
        assert problems(two_listeners(bind)) == [f"listeners[1].bind: {taken}, column 19"]
        assert problems(MINIMAL + f"admin: {{bind: '{bind}'}}") == [f"admin.bind: {taken}, column 9"]
    (problem,) = problems(MINIMAL.replace("9092", "9644"))
    assert problem.startswith("admin.bind: 127.0.0.1:9644 is taken by listeners[0].bind"), "the default counts, too"
    found = problems(two_listeners("127.0.0.1:9092", more="broker.id: 3\nlog.level: x\n"))
    assert [problem.split(":")[0] for problem in found] == ["broker.id", "listeners[1].bind", "log.level"]
    config = loaded(two_listeners("127.0.0.2:9092", upstream="10.0.0.9:9092"))
    assert [str(listener.bind) for listener in config.listeners] == ["127.0.0.1:9092", "127.0.0.2:9092"]


@pytest.mark.promise("config/listeners.md", "An upstream that leads back to a listener of the sidecar is refused.")
def test_no_address_of_the_broker_leads_back_to_the_sidecar(problems):
    for upstream in ("127.0.0.1:9092", "localhost:9092", "127.0.0.1:9093", "kafka-1:9094"):
        (problem,) = problems(
            "broker.id: 1\nlisteners:\n"
            f'  - {{name: A, bind: "127.0.0.1:9092", upstream: "{upstream}"}}\n'
            "  - {name: B, bind: 0.0.0.0:9093, advertised: kafka-1:9094, upstream: 127.0.0.1:19093}\n"
        )
        assert problem.startswith(f"listeners[0].upstream: {upstream} leads back to listeners[")
        assert problem.endswith("at line 3, column 39")
    (problem,) = problems(MINIMAL + "internal.bootstrap.servers: 10.0.0.1:9092, localhost:9092\n")
    assert problem.startswith("internal.bootstrap.servers: localhost:9092 leads back to listeners[0].bind (allowed:")


@pytest.mark.promise("config/observers.md", "Observers need the address of the cluster.")
def test_observers_need_the_cluster(problems, loaded):
    (problem,) = problems(MINIMAL + "observer.class.names: [a.b:C]\n")
    assert problem.startswith("internal.bootstrap.servers: is missing, and observers need it (allowed: ")

    config = loaded(MINIMAL + "internal.bootstrap.servers: h:1, i:2\nobserver.class.names: a.b:C, d:E\n")
    assert config.observer_class_names == ("a.b:C", "d:E")
    assert config.internal_bootstrap_servers == "h:1,i:2"


@pytest.mark.promise("config.md", "An environment variable replaces the value of its key in the file.")
def test_the_environment_overrides_the_file(loaded):
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
    config = loaded(MINIMAL + "audit: {topic: x, exclude.topics: [c]}\n", **environ)

    assert config.broker_id == 7
    assert config.admin.bind == Endpoint("127.0.0.1", 1234)
    assert config.audit.topic == "123"
    assert config.audit.exclude_topics == ("a", "b")
    assert config.audit.producer == {"linger.ms": "5"}
    assert config.internal_client_settings() == {"bootstrap.servers": "h:1", "sasl.username": "0123"}
    assert config.observer_class_names == ("a:B", "c:D")

    others = {
        "BROKERSIDE_CACHE": "/c",
        "BROKERSIDE_MAVEN_REPOSITORY": "u",
        "BROKERSIDE_SERVICE_HOST": "10.0.0.1",
        "BROKERSIDE_SERVICE_PORT": "9092",
        "BROKERSIDE_SERVICE_PORT_CLIENT": "9092",
        "BROKERSIDE_PORT": "tcp://10.0.0.1:9092",
        "BROKERSIDE_ADMIN_PORT_9644_TCP": "tcp://10.0.0.1:9644",
        "BROKERSIDE_ADMIN_PORT_9644_TCP_ADDR": "10.0.0.1",
    }
    assert loaded(MINIMAL, **others) == loaded(MINIMAL), "what Kubernetes and others set is left alone"


def test_a_mistake_of_the_environment_names_its_variable(problems):
    found = problems(
        MINIMAL + "log.level: info\n", BROKERSIDE_LOG_LEVEL="loud", BROKERSIDE_LISTENERS="[{name: A, bind: x}]"
    )
    assert found == [
        f"listeners[0].bind: 'x' is not host:port {ENDPOINT} from BROKERSIDE_LISTENERS",
        f"listeners[0].upstream: is missing {ENDPOINT} from BROKERSIDE_LISTENERS",
        "log.level: 'loud' is not known (allowed: debug, info, warning or error) from BROKERSIDE_LOG_LEVEL",
    ]
    assert problems(MINIMAL, BROKERSIDE_ADMN__BIND="a:1", BROKERSIDE_COLOURS="x") == [
        "BROKERSIDE_ADMN__BIND: is set, and is no key (did you mean BROKERSIDE_ADMIN__BIND?)",
        "BROKERSIDE_COLOURS: is set, and is no key (allowed: keys of docs/config.md as BROKERSIDE_SECTION__KEY)",
    ]
    assert problems(MINIMAL, BROKERSIDE_BROKER_ID="[") == ["BROKERSIDE_BROKER_ID: its value is not YAML"]
    assert problems(MINIMAL + "admin: x\n", BROKERSIDE_ADMIN__BIND="a:1") == [
        "admin: 'x' is not a mapping (allowed: the keys of admin) at line 4, column 1"
    ]
    assert problems(MINIMAL, BROKERSIDE_ADMIN_PORT="9700")[0].startswith("BROKERSIDE_ADMIN_PORT: is set, and is no")


@pytest.mark.promise("security.md", "Secrets of the configuration come from files or variables, and are shown nowhere.")
def test_secrets_come_from_files_or_variables_and_show_themselves_nowhere(loaded, problems, tmp_path):
    (tmp_path / "password").write_text(CANARY + "\n")
    config = loaded(MINIMAL + "internal: {sasl.password: {file: password}, enable.x: true, n: 5}\n")
    assert config.internal_client_settings() == {"sasl.password": CANARY, "enable.x": "true", "n": "5"}
    config = loaded(MINIMAL + "internal: {ssl.ca.pem: public}\n")
    assert config.internal_client_settings() == {"ssl.ca.pem": "public"}, "a certificate is no secret"
    config = loaded(MINIMAL, BROKERSIDE_INTERNAL__SASL_PASSWORD=CANARY)
    assert config.internal_client_settings() == {"sasl.password": CANARY}

    shown = (repr(config), str(config), config.model_dump_json(), json.dumps(redacted(config)), repr(config.internal))
    assert not [text for text in shown if CANARY in text]
    assert redacted(config)["internal"] == {"sasl.password": "***"}
    secret = Secret(CANARY)
    assert (str(secret), repr(secret), f"{secret}", f"{secret!r}") == ("***",) * 4

    (problem,) = problems(MINIMAL + f"internal: {{sasl.password: {CANARY}}}\n")
    assert problem == (
        "internal.sasl.password: must not stand in the configuration (allowed: {file: PATH}, "
        "or the variable BROKERSIDE_INTERNAL__SASL_PASSWORD) at line 4, column 12"
    )
    for line in (
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
    ):
        assert CANARY not in str(problems(MINIMAL + line + "\n")), line


@pytest.mark.promise("config.md", "A file of a secret or of keys that cannot be one is a mistake, and is not quoted.")
def test_files_of_secrets_that_hold_none_are_mistakes(problems, tmp_path):
    path = tmp_path / "p"
    for content, expected in (
        (None, "cannot be read: No such file or directory"),
        (b"", "holds 0 bytes (allowed: 1–65536)"),
        (b"\n", "holds 1 bytes (allowed: 1–65536)"),
        (b"x" * 65_537, "holds 65537 bytes (allowed: 1–65536)"),
        (b"\xff", "is not text in UTF-8"),
    ):
        if content is not None:
            path.write_bytes(content)
        (problem,) = problems(MINIMAL + "internal: {sasl.password: {file: p}}\n")
        assert problem.startswith(f"internal.sasl.password: file 'p' {expected}"), content
    for section in ("audit", "registry"):
        path.unlink()
        for content, wrong in (
            (None, "cannot be read: No such file or directory"),
            (b"", "holds 0 keys (allowed: 1–8)"),
            (b"\xff", "is not text in UTF-8"),
            (b"k1", "line 1 is not ID:KEY (allowed: an id of A-Z a-z 0-9 _ . -, a key without spaces)"),
            (b"# keys\nk1:" + CANARY.encode(), "line 2: the key of 'k1' is too short (allowed: 32 bytes or more)"),
            (2 * (b"k1:" + 32 * b"a" + b"\n"), "line 2: the id 'k1' is given twice (allowed: once)"),
        ):
            if content is not None:
                path.write_bytes(content)
            (problem,) = problems(MINIMAL + f"{section}: {{hmac.keys.file: p}}\n")
            assert problem.startswith(f"{section}.hmac.keys.file: file 'p' {wrong} at line "), content
            assert CANARY not in problem


EXAMPLE = example()


@pytest.mark.promise("config.md", "The complete example has every key, and loads; each has one section.")
def test_the_example_loads_and_uses_every_key(loaded, tmp_path):
    write_example_files(tmp_path, CANARY, KEYS)

    config = loaded(EXAMPLE)

    def keys(value):
        return {k: keys(v) for k, v in value.items()} if isinstance(value, dict) else None

    written = yaml.safe_load(EXAMPLE)
    written["internal"]["sasl.password"] = "***"
    written["tags"]["rack"] = written.pop("tag.rack")
    assert keys(redacted(config)) == keys(written)
    assert set(redacted(config)["listeners"][0]) == set(written["listeners"][0])

    index, *described = [text for _, text in sorted(pages().items(), key=lambda page: page[0].count("/"))]
    headings = re.findall(r"^## `(.+)`$", "\n".join(described), re.MULTILINE)
    assert sorted(headings) == sorted(set(headings)) == sorted(re.findall(r"^\| \[`(.+?)`\]", index, re.MULTILINE))
    assert {"listeners[].bind", "quotas.max.connections.per.ip"} < set(headings)


@pytest.mark.promise("architecture.md", "A worker has the configuration of its main process, secrets included.")
def test_a_configuration_is_the_same_in_another_process_and_when_its_report_is_loaded(loaded, tmp_path):
    config = loaded(MINIMAL + "admin: {bind: '[::1]:9700'}\naudit: {exclude.topics: [a]}\n")
    assert loaded(yaml.safe_dump(redacted(config))) == config

    (tmp_path / "password").write_text(CANARY)
    settings = "internal: {sasl.username: brokerside, sasl.password: {file: password}, enable.ssl: false}\n"
    config = loaded(f"{MINIMAL}{settings}quotas: {{max.connections: 5}}\n", BROKERSIDE_ADMIN__BIND="[::1]:9")
    arrived = unpack(pack(config))
    assert arrived == config.model_copy(update={"quotas": arrived.quotas})
    assert arrived.quotas == Quotas(), "no worker needs them"
    assert arrived.internal_client_settings()["sasl.password"] == CANARY
    assert CANARY not in repr(arrived)
    stored = loaded(MINIMAL + "internal.bootstrap.servers: 127.0.0.1:9\nquotas: {ip.store: broker}\n")
    assert unpack(pack(stored)).quotas.ip_store == "broker"
    write_example_files(tmp_path, CANARY, KEYS)
    whole = loaded(EXAMPLE)
    arrived = unpack(pack(whole))
    assert arrived == whole.model_copy(update={"quotas": arrived.quotas})
    assert arrived.audit.hmac_keys_file.reveal() == arrived.registry.hmac_keys_file.reveal() == KEYS


# ---- tags and listeners ----------------------------------------------------------------------------------------------


@pytest.mark.promise("config/broker.md", "The response to unsupported requests is set for all listeners, or one.")
def test_defaults_and_what_is_said_for_all_listeners(loaded, problem):
    config = loaded(TWO)
    assert config.tags == {}
    assert config.broker_version is None
    assert config.private_api_key_base == 30_000
    assert config.broker_metadata_before_authentication is False
    assert config.metadata_watch_ms == 1000
    assert [one.unsupported_request_response for one in config.listeners] == ["empty", "forward"]
    assert [one.rewrite_addresses for one in config.listeners] == [False, False]

    config = loaded(TWO + "unsupported.request.response: close\n")
    assert [one.unsupported_request_response for one in config.listeners] == ["close", "forward"]
    allowed = "(allowed: empty, close or forward)"
    wrong = f"unsupported.request.response: 'ignore' is not known {allowed} at line 5, column 1"
    assert problem(TWO + "unsupported.request.response: ignore\n") == wrong


@pytest.mark.promise("tags.md", "Tags stand as in a broker's properties, and keep the text that was written.")
def test_tags_stand_alone_as_in_a_broker_s_properties_or_together(loaded, problem):
    config = loaded(TWO + "tag.aws.zone: eu-central-1\ntags: {cluster: kafka3}\ntag.rack: r8a9\n")
    assert config.tags == {"aws.zone": "eu-central-1", "cluster": "kafka3", "rack": "r8a9"}
    assert redacted(config)["tags"] == config.tags
    assert unpack(pack(config)) == config

    lines = "tag.aws.zone = eu-central-1\ntag.rack=r8a9\r\ntag.cluster =kafka3  \n"
    config = loaded(TWO + lines + "quotas: {max.connections: 5}\ntag.last = 1.10")
    assert config == loaded(
        TWO + "tags: {aws.zone: eu-central-1, rack: r8a9, cluster: kafka3, last: 1.10}\nquotas: {max.connections: 5}\n"
    )
    assert config.tags == {"aws.zone": "eu-central-1", "rack": "r8a9", "cluster": "kafka3", "last": "1.10"}
    assert config.quotas.max_connections == 5
    for written in ("a: b", "a # b", '"a"', "a=b", "\\u0041\\", "[a", "- a", "{a: b}", "ä", "&a", "%"):
        assert loaded(TWO + f"tag.x = {written}\n").tags == {"x": written}
    assert loaded(f"tag.x =\n{TWO}").tags == {"x": ""}, "it may be empty or come first"
    assert loaded(TWO + "tags:\n  x: |\n    tag.y = z\n").tags == {"x": "tag.y = z\n"}
    assert problem(TWO + "tags:\n  tag.x = y\n").startswith("tags: "), "elsewhere it is no tag"

    for written in ("1.10", "0x1F", "yes", "007", "2026-01-01", "null", "1_000", "a b"):
        assert loaded(TWO + f"tag.x: {written}\n").tags == {"x": written}
        assert loaded(TWO + f"tags: {{x: {written}}}\n").tags == {"x": written}
        assert loaded(TWO, BROKERSIDE_TAGS=f"{{x: {written}}}").tags == {"x": written}


@pytest.mark.promise("tags.md", "A tag with the name of a built-in one is refused, and so is one too long or too many.")
def test_mistakes_of_tags_have_their_place(problem):
    twice = "tag.rack: is given twice (allowed: once, here or as rack under tags) at line 6, column 1"
    assert problem(TWO + "tags: {rack: a}\ntag.rack = b\n") == problem(TWO + "tags: {rack: a}\ntag.rack: b\n") == twice
    assert problem(TWO + "tag.rack = a\ntag.rack = b\n") == "tag.rack: is given twice (allowed: once) at lines 5 and 6"
    assert "tag.a$b" in problem(TWO + "tag.a$b = c\n").replace("tags.", "tag.")
    assert problem(TWO + "tag.broker.id = 9\n").endswith("at line 5, column 1")
    assert problem(TWO + f"tag.x = {'a' * 2000}\n").startswith("tag.x: ")
    nested = problem(TWO + "tag.rack: {a: b}\n")
    assert nested.startswith("tag.rack: the value is not text (allowed: up to 100 tags")
    assert nested.endswith("at line 5, column 1")
    assert "'' is not a tag's name" in problem(TWO + "tag.: b\n")
    assert "has more than 1024 characters" in problem(TWO + f"tag.rack: {'x' * 1025}\n")
    many = problem(TWO + "".join(f"tag.t{number}: x\n" for number in range(101)))
    assert many.startswith("tags: the value holds more than 100 tags (allowed: up to 100 tags with")
    rest = "is the name of a built-in tag, or reserved for one (allowed: a name that docs/tags.md does not have)"
    for name in (*TAGS_BY_NAME, "sidecar.features", "brokerside.features.epoch"):
        assert problem(TWO + f"tag.{name}: 9\n") == f"tag.{name}: {rest} at line 5, column 1"
        assert problem(TWO + f"tags:\n  {name}: 9\n") == f"tags.{name}: {rest} at line 6, column 3"


@pytest.mark.promise("config/listeners.md", "Addresses are rewritten by node id, and a useless map is refused.")
def test_addresses_are_rewritten_by_node_id(loaded, problem):
    map_of = 'rewrite.addresses: true, rewrite.addresses.map: {2: "b:9", 3: "c:9"}'
    config = loaded(TWO.replace("forward}", f"forward, {map_of}}}"))
    assert config.listeners[1].rewrite_addresses_map == {2: Endpoint("b", 9), 3: Endpoint("c", 9)}
    assert unpack(pack(config)) == config

    on = "rewrite.addresses: true, "
    bytes_alone = "addresses: true is not possible with security.protocol: SSL and no tls, which passes as bytes"
    for keys, wrong in (
        ("rewrite.addresses.map: {2: 'b:9'}", "map: is given, and rewrite.addresses is not true (allowed: both"),
        (on + "rewrite.addresses.map: {1: 'b:9'}", "map.1: is this sidecar's own broker (allowed"),
        (on + "rewrite.addresses.map: {x: 'b:9'}", "map.x: 'x' is no broker's id (allowed: node"),
        (on + "rewrite.addresses.map: {2: b}", "map.2: 'b' is not host:port (allowed: node ids"),
        (on + "security.protocol: SSL", bytes_alone),
    ):
        found = problem(TWO.replace("forward}", f"forward, {keys}}}"))
        assert found.startswith("listeners[1].rewrite.addresses")
        assert wrong in found
        assert re.search(r" at line 4, column \d+$", found)


# ---- the coordinator -------------------------------------------------------------------------------------------------


@pytest.mark.promise("coordinator.md", "No group is coordinated by a sidecar unless its configuration enables it.")
def test_all_keys_are_read_and_nothing_is_coordinated_by_default(loaded, problems):
    found = loaded(CLUSTER).coordinator
    assert not found.enabled
    assert (found.partitions, found.max_consumers, found.groups) == (12, 10_000, {})

    text = f"""{CLUSTER}coordinator:
  enabled: true
  partitions: 3
  min.session.timeout.ms: 2000
  max.ping.retries: 3
  max.rebalance.retries: 0
  rebalance.backoff.ms: 0
  rebalance.delay.ms: 0
  rebalance.threadpool.size: 1
  offset.commit.interval.ms: 1000
  state.write.timeout.ms: 2000
  max.consumers: 7
  groups: {{"a.b/c": {{rebalance.enabled: false}}, other: {{}}}}
"""
    found = loaded(text).coordinator
    assert found.enabled
    assert (found.partitions, found.min_session_timeout_ms, found.max_ping_retries) == (3, 2000, 3)
    assert (found.max_rebalance_retries, found.rebalance_backoff_ms, found.rebalance_delay_ms) == (0, 0, 0)
    assert (found.rebalance_threadpool_size, found.offset_commit_interval_ms) == (1, 1000)
    assert (found.state_write_timeout_ms, found.max_consumers) == (2000, 7)
    assert {name: group.rebalance_enabled for name, group in found.groups.items()} == {"a.b/c": False, "other": True}
    assert unpack(pack(loaded(text))) == loaded(text)


WRONG_OF_COORDINATOR = [
    ("partitions: 129", "partitions: 129 is out of range (allowed: 1–128 partitions)"),
    ("rebalance.delay.ms: '1'", "rebalance.delay.ms: '1' is not a whole number (allowed: 0–10000 ms)"),
    ("enabled: 1", "enabled: 1 is not true or false (allowed: true or false)"),
    ("groups: {g: {rebalance.enabled: 0}}", "groups.g.rebalance.enabled: 0 is not true or false (allowed: true"),
    (
        "groups: {'': {}}",
        "groups.: '' is no group's id (allowed: ids of groups (1 to 255 characters of printable ASCII",
    ),
    (f"groups: {{{'g' * 256}: {{}}}}", "is no group's id"),
    ("groups: {g: {rebalance: false}}", "groups.g.rebalance: unknown key (did you mean rebalance.enabled?)"),
]


@pytest.mark.promise("config.md", "A mistake in the coordinator's keys is named with what is allowed, and refused.")
def test_what_is_wrong_is_named_with_what_is_allowed(loaded, problems):
    for line, problem in WRONG_OF_COORDINATOR:
        (found,) = problems(f"{CLUSTER}coordinator: {{{line}}}\n")
        assert found.startswith("coordinator."), line
        assert problem in found, line
    for text, reason in (
        (MINIMAL, "needs internal.bootstrap.servers, which is missing (allowed: false, or both)"),
        (f"{CLUSTER}features: {{enabled: false}}\n", "needs features.enabled, which is false (allowed: false, or both"),
    ):
        (found,) = problems(f"{text}coordinator: {{enabled: true}}\n")
        assert found.startswith(f"coordinator.enabled: true {reason}")
        assert loaded(f"{text}coordinator: {{enabled: false}}\n"), "nothing is needed for nothing"


@pytest.mark.promise("config/coordinator.md", "More consumers than a third of the descriptors are refused.")
def test_consumers_beyond_a_third_of_the_descriptors_are_refused(loaded, problems):
    section = "coordinator: {enabled: true, max.consumers: 100}\n"
    check_consumers(loaded(CLUSTER + section), 300)
    check_consumers(loaded(CLUSTER + section.replace("true", "false")), 3)
    said = (
        r"coordinator\.max\.consumers: 100 needs RLIMIT_NOFILE 300 \(ulimit -n\), which is 299 \(allowed: up to 99 co"
    )
    with pytest.raises(LocalError, match=said):
        check_consumers(loaded(CLUSTER + section), 299)
