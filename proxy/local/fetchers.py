"""The ordinary clients that fetch jars: Ivy, which every pyspark wheel carries, or else ``mvn`` on PATH.

Both are asked for exactly the pinned files and put them into the folder ``jars`` of their share; no POM is read and
nothing transitive is resolved.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from proxy.errors import LocalError
from proxy.extras import install_command
from proxy.local.pins import Pin

MIRROR = "BROKERSIDE_MAVEN_REPOSITORY"
"""Environment variable with the root URL of a Maven repository to use in place of the client's default."""


def find_ivy() -> Path | None:
    """Return the Ivy of the installed pyspark, None where there is none."""
    found = importlib.util.find_spec("pyspark")
    for place in (found and found.submodule_search_locations) or ():
        for jar in sorted(Path(place).glob("jars/ivy-*.jar")):
            return jar
    return None


def ivy_command(runtime: Path, ivy: Path, pins: Sequence[Pin], share: Path) -> list[str]:
    """Write Ivy's files into ``share`` and return the command that fetches ``pins``."""
    mirror = os.environ.get(MIRROR)
    root = f" root={quoteattr(mirror)}" if mirror else ""
    settings, module = share / "settings.xml", share / "ivy.xml"
    settings.write_text(
        "<ivysettings>"
        '<property name="ivy.checksums" value=""/>'  # ours are stronger, and these cost a round trip for each jar
        '<settings defaultResolver="repository"/>'
        f"<caches defaultCacheDir={quoteattr(str(share / 'cache'))} repositoryCacheDir={quoteattr(str(share))}"
        ' artifactPattern="jars/[artifact]-[revision].[ext]"/>'
        '<timeout-constraints><timeout-constraint name="bounded" connectionTimeout="15000" readTimeout="60000"/>'
        "</timeout-constraints>"
        '<resolvers><ibiblio name="repository" m2compatible="true" usepoms="false" timeoutConstraint="bounded"'
        f"{root}/></resolvers>"
        "</ivysettings>"
    )
    wanted = "".join(
        f'<dependency org="{pin.group}" name="{pin.artifact}" rev="{pin.version}" transitive="false"'
        f' conf="default-&gt;*"><artifact name="{pin.artifact}" type="jar" ext="jar"/></dependency>'
        for pin in pins
    )
    module.write_text(
        '<ivy-module version="2.0"><info organisation="brokerside" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{wanted}</dependencies>'
        '<conflicts><manager name="all"/></conflicts></ivy-module>'  # a set may have two versions of a jar
    )
    run = [str(runtime), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(ivy)]
    return [*run, "-settings", str(settings), "-ivy", str(module), "-confs", "default"]


def maven_command(pins: Sequence[Pin], share: Path) -> list[str]:
    """Write Maven's file into ``share`` and return the command that fetches ``pins``. Raises LocalError without mvn."""
    maven = shutil.which("mvn")
    if maven is None:
        raise LocalError(
            "jars are fetched with the Ivy of pyspark or with Maven, and there is neither: "
            f"run `{install_command('spark')}`, or put `mvn` on PATH"
        )
    mirror = os.environ.get(MIRROR)
    # `central` is the name under which Maven knows its default repository, for jars and for plugins.
    place = f"<id>central</id><url>{escape(mirror or '')}</url>"
    repositories = (
        f"<repositories><repository>{place}</repository></repositories>"
        f"<pluginRepositories><pluginRepository>{place}</pluginRepository></pluginRepositories>"
    )
    items = "".join(
        f"<artifactItem><groupId>{pin.group}</groupId><artifactId>{pin.artifact}</artifactId>"
        f"<version>{pin.version}</version></artifactItem>"
        for pin in pins
    )
    pom = share / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>brokerside</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><packaging>pom</packaging>{repositories if mirror else ''}<build><plugins><plugin>"
        "<groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId>"
        f"<configuration><artifactItems>{items}</artifactItems>"
        f"<outputDirectory>{escape(str(share / 'jars'))}</outputDirectory>"
        "</configuration></plugin></plugins></build></project>"
    )
    return [maven, "--batch-mode", "--no-transfer-progress", "--file", str(pom), "dependency:copy"]
