"""Direct access to the stack's services by another user of the machine."""

import asyncio
import atexit
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import SparkConnectClient

from chaos.harm.attack import Attack, Attacker, may
from pulse_pipelines import registry
from pulse_pipelines.lake import metadata
from pulse_resources import object_store
from pulse_resources.errors import first_line
from pulse_resources.settings import load_settings
from pulse_resources.store_keys import vended, vending_accounts
from pulse_resources.store_keys.vended import Mode


async def _services(attacker: Attacker) -> None:
    while attacker.remaining_s > 0:
        for ask in (_kafka, _spark):
            attacker.counts[await asyncio.to_thread(ask, attacker)] += 1


def _kafka(attacker: Attacker) -> str:
    settings: dict[str, Any] = {"bootstrap.servers": attacker.target.kafka, "log_level": 0}
    try:
        AdminClient(settings | {"error_cb": lambda _: None}).list_topics(timeout=1.5)
    except KafkaException:
        return "refused by Kafka"
    return "topics of Kafka"


def _spark(attacker: Attacker) -> str:
    client = SparkConnectClient(attacker.target.spark)  # a session would become that of this process
    atexit.unregister(client._cleanup_ml_cache)
    try:
        client._analyze("spark_version")
    except PySparkException as error:
        is_refusal = "authenticat" in str(error).lower() or "authorization" in str(error).lower()
        return "refused by Spark" if is_refusal else f"unclear: {error}"
    finally:
        client.close()
    return "a session of Spark"


async def _revoke(attacker: Attacker) -> None:
    while attacker.remaining_s > 0:
        for status in await asyncio.to_thread(_revoke_once, attacker):
            attacker.counts[status] += 1


def _revoke_once(attacker: Attacker) -> tuple[str, str]:
    """Revoke all that the account of the attacker's key has issued, and use a key that Pulse keeps."""
    folder = metadata.folder(registry.find_tenant(attacker.target.tenant))
    pulse_key = vended.credentials([folder], Mode.READ)
    key = vended.credentials([folder], Mode.READ, to_tenant=True)
    vended.drop({key.access_key})
    revoked = f"{vending_accounts.revoke(load_settings(), key)} for the attacker's account"
    try:
        list(object_store.listed(folder, metadata.client(pulse_key)))
    except OSError as error:
        return revoked, f"unclear: {first_line(error)}"
    return revoked, "200 for a key of another account"


ATTACKS = (
    Attack("Spark Connect without a token, Kafka without SASL", "none", _services, may("refused")),
    Attack("all keys of the object store revoked, in a loop", "lake:read, vended", _revoke, may(200, 204)),
)
