"""Kafka's rules from the subject of a certificate to a principal; tests/integration/test_tls_oracle.py asks Kafka."""

import pytest

from proxy.tls.principal_mapping import NoMatchingRule, PrincipalMapper

DUKE = "CN=Duke,OU=ServiceUsers,O=Org,C=DE"


@pytest.mark.promise(
    "tls.md", "The first of `ssl.principal.mapping.rules` whose pattern matches the whole subject counts."
)
def test_the_first_rule_that_matches_the_whole_subject_maps_it():
    for rules, expected in [
        ("DEFAULT", DUKE),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1@$2/U", "DUKE@$2"),
        ("RULE:x/y/, RULE:^CN=(?<name>[^,]+).*/${name}/", "Duke"),
        ("RULE:.*/x/", "xx"),  # Java replaces the empty match at the end, too
    ]:
        assert PrincipalMapper(rules).map_name(DUKE) == expected, (rules, expected)
    with pytest.raises(NoMatchingRule):
        PrincipalMapper("RULE:CN=Duke/duke/").map_name(DUKE)


@pytest.mark.promise(
    "tls.md", "Mapping rules that Python reads in another way than Java are mistakes of the configuration."
)
def test_rules_that_a_broker_refuses_or_python_reads_otherwise_are_refused():
    for rules, message in [
        ("RULE:x", "is no rule"),
        ("DEFAULTS", "is no rule"),
        ("RULE:(/x/", "missing \\)|unterminated"),
        (r"RULE:\p{L}/x/", r"\\p at character 1 is not supported"),
        ("RULE:[a&&b]/x/", "classes in classes"),
        ("RULE:(?P<n>a)/x/", r"\(\?P at character 1 is not supported"),
        ("RULE:a(?s)b/x/", "flag s"),
        ("RULE:a{,3}/x/", r"\{,3 at character 2"),
        ("RULE:[]/x/", "this class"),
        ("RULE:CN=.*/$1/", "there is no group 1"),
        ("RULE:CN=(.*)/$/", r"a \$ has to name a group"),
        ("RULE:CN=(.*)/${n}/", "there is no group n"),
    ]:
        with pytest.raises(ValueError, match=message):
            PrincipalMapper(rules)
