from typing import Final

from headrace import aio as aio
from headrace.clients.admin.blocking import Admin as Admin
from headrace.clients.assignors import register_assignor as register_assignor
from headrace.clients.consumer.blocking import Consumer as Consumer
from headrace.clients.consumer.records import ConsumerRecord as ConsumerRecord
from headrace.clients.partitioners import register_partitioner as register_partitioner
from headrace.clients.producer.blocking import Producer as Producer
from headrace.clients.producer.delivery import RecordMetadata as RecordMetadata
from headrace.embedded.broker import Broker as Broker
from headrace.embedded.clock import ManualClock as ManualClock
from headrace.errors import HeadraceError as HeadraceError
from headrace.serdes.serde import register_serde as register_serde
from headrace.storage.registry import register_storage as register_storage
from headrace.types import TopicPartition as TopicPartition
from headrace.workers.app import App as App
from headrace.workers.deduplication.declared import SeenFile as SeenFile
from headrace.workers.deduplication.declared import SeenTopic as SeenTopic
from headrace.workers.failure.outcomes import DeadLetter as DeadLetter
from headrace.workers.failure.outcomes import Retry as Retry
from headrace.workers.failure.outcomes import RetryLater as RetryLater
from headrace.workers.failure.outcomes import Skip as Skip
from headrace.workers.handler.context import Context as Context
from headrace.workers.handler.context import SyncContext as SyncContext
from headrace.workers.monitoring.counters import Event as Event

__version__: Final[str]
