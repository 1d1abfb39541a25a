"""Plans that Spark logs and shows in its UI have the options of writes, without secrets."""

from __future__ import annotations

import re

import pytest

from headrace.config.secrets import is_secret
from headrace.pipelines.running import session as of_pipelines
from headrace.spark import session as of_spark

BY_ITSELF = "(?i)secret|password|token|access[.]?key"
"""Names of options that Spark redacts without a setting."""


@pytest.mark.parametrize("settings", [of_pipelines.SETTINGS, of_spark.SETTINGS])
@pytest.mark.parametrize(
    "name", ["sasl.jaas.config", "sasl.password", "ssl.key.pem", "ssl.keystore.key"]
)
def test_secrets_among_options_are_left_out_of_plans(settings: dict[str, str], name: str) -> None:
    assert is_secret(name)
    patterns = (BY_ITSELF, settings["spark.sql.redaction.options.regex"])
    assert any(re.search(each, f"kafka.{name}") for each in patterns)
    assert not any(re.search(each, "kafka.sasl.mechanism") for each in patterns)


def test_a_catalogs_address_which_may_have_a_password_is_left_out() -> None:
    assert re.search(of_spark.REDACTED, "archiveCatalog")
    assert not re.search(of_spark.REDACTED, "archiveFormat")
