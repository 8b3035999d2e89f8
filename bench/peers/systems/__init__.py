"""The compared systems, Holdfast first."""

from bench.peers.system import System
from bench.peers.systems.holdfast import Holdfast
from bench.peers.systems.kafka import Kafka
from bench.peers.systems.nats import Nats
from bench.peers.systems.rabbitmq import RabbitClassic, RabbitQuorum
from bench.peers.systems.redis import RedisStreams
from bench.peers.systems.rocketmq import RocketMQ

SYSTEMS: tuple[System, ...] = (
    Holdfast(),
    RedisStreams(),
    Nats(),
    RabbitClassic(),
    RabbitQuorum(),
    Kafka(),
    RocketMQ(),
)
