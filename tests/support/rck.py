"""Iceberg's REST Compatibility Kit, run against a catalog with nothing but a tenant's key."""

import subprocess
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from pulse_resources.local.downloads import Jar, jars
from pulse_resources.local.prerequisites import java

VERSION = "1.11.0"
_ICEBERG, _JUNIT = "org.apache.iceberg", "org.junit.platform"
KIT = jars(
    f"rest-compatibility-kit-{VERSION}",
    "Iceberg's REST Compatibility Kit",
    Jar(_ICEBERG, "iceberg-open-api", VERSION, alone=True, classifiers=("tests", "test-fixtures")),
    Jar(_ICEBERG, "iceberg-core", VERSION, classifiers=("", "tests")),
    Jar(_ICEBERG, "iceberg-api", VERSION, classifiers=("", "tests")),
    Jar(_ICEBERG, "iceberg-aws", VERSION, alone=True),
    Jar(_ICEBERG, "iceberg-aws-bundle", VERSION, alone=True),
    Jar("org.apache.hadoop", "hadoop-client-api", "3.4.1", alone=True),
    Jar("org.apache.hadoop", "hadoop-client-runtime", "3.4.1", alone=True),
    Jar(_JUNIT, "junit-platform-console-standalone", "1.13.4", alone=True),
    Jar("org.assertj", "assertj-core", "3.27.7"),
    Jar("org.awaitility", "awaitility", "4.3.0"),
    Jar("org.mockito", "mockito-core", "4.11.0"),
    Jar("org.slf4j", "slf4j-simple", "2.0.17"),
    Jar("dev.failsafe", "failsafe", "3.3.2", alone=True),
    Jar("commons-logging", "commons-logging", "1.2", alone=True),
)
SUITE = "org.apache.iceberg.rest.RESTCompatibilityKitSuite"


@dataclass(frozen=True)
class Verdict:
    """What the kit says: names of its tests."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    """Those that do not apply: the kit, or a property above, leaves them out."""


def judged(uri: str, warehouse: str, key: str, reports: Path, timeout: float = 1200) -> Verdict:
    """Run the kit; what it says in full is in `reports`."""
    KIT.fetch(lambda line: None)
    properties = {
        "rck.local": "false",
        "rck.requires-namespace-create": "true",
        "rck.overrides-requested-location": "true",
        "rck.supports-names-with-dot": "true",
        "uri": uri,
        "credential": key,
        "oauth2-server-uri": f"{uri}/v1/oauth/tokens",
        "warehouse": warehouse,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "header.X-Iceberg-Access-Delegation": "vended-credentials",
        "org.slf4j.simpleLogger.defaultLogLevel": "error",
    }
    launcher = ("org.junit.platform.console.ConsoleLauncher", "execute", "--select-class", SUITE)
    with (reports / "output.txt").open("w") as output:
        subprocess.run(
            [
                java(),
                "-Xmx1g",
                *(f"-D{name}={value}" for name, value in properties.items()),
                *("-cp", f"{KIT.path}/*", *launcher),
                *("--reports-dir", str(reports), "--details", "summary", "--disable-banner"),
            ],
            cwd=reports,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
    return _read(reports)


def _read(reports: Path) -> Verdict:
    names_by_kind: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for path in sorted(reports.glob("TEST-*.xml")):
        for case in ET.parse(path).getroot().iter("testcase"):  # noqa: S314 - the kit wrote it
            name = f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name']}"
            bad = case.find("failure") is not None or case.find("error") is not None
            kind = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
            names_by_kind[kind].append(name)
    return Verdict(**{kind: tuple(names) for kind, names in names_by_kind.items()})
