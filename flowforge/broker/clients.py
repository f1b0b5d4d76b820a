"""
Clients of the Redis at REDIS_URL, each command of which ends within five seconds.

redis-py has no URL for Sentinel, so that one is read here, in the form that other projects have given it, with
`rediss+sentinel` for TLS: `redis+sentinel://[[user]:password@]host[:port][,host[:port]…]/service[/db][?option=value…]`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from flowforge.errors import IncompatibleServer, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowforge.settings import Settings

logger = logging.getLogger(__name__)

#: Seconds: to connect and to answer; for one sentinel; and of those who shall not wait for what may be lost.
_CONNECT, _ANSWER, _ASK, _PATIENCE = 1.5, 2.5, 0.5, 0.25
_SENTINEL_PORT = 26_379
_FORMS = "give redis://host:6379/0, rediss://host:6379/0, or redis+sentinel://host:26379,host:26379/service/0"
_OLDEST_REDIS, _OLDEST_VALKEY = (7, 0), (7, 2)
#: What a new connection mends: the server has closed the old one, or is a replica now, and its name leads elsewhere.
_MENDED = (redis.ConnectionError, redis.ReadOnlyError)
#: What an eviction policy does to FlowForge, and what to do.
EVICTION_REMEDY = "set it to noeviction: dropped dispatches are late, dropped messages to actors of your own are lost"


def connect_redis(settings: Settings) -> redis.Redis:
    """Return a client of REDIS_URL. Raises `SettingsError` when the URL cannot be read."""
    url = settings.require("redis_url").redis_url
    options = {
        "socket_connect_timeout": _CONNECT,
        "socket_timeout": _ANSWER,
        "health_check_interval": 15,
        # A server that does not answer has had its time, and is not asked again.
        "retry": Retry(ExponentialBackoff(cap=0.5, base=0.05), 2, _MENDED),
    }
    try:
        return _by_sentinel(url, options) if "+sentinel://" in url else redis.Redis.from_url(url, **options)
    except ValueError as error:
        raise SettingsError("REDIS_URL", f"{url.partition('://')[0]}://…", f"{_FORMS} ({error})") from None


def impatient(client: redis.Redis) -> redis.Redis:
    """Return a client of the same server that gives up at once: nobody shall wait for what may be lost."""
    pool = client.connection_pool
    options = {**pool.connection_kwargs, "socket_connect_timeout": _PATIENCE, "socket_timeout": _PATIENCE}
    options |= {"connection_class": pool.connection_class, "retry": Retry(NoBackoff(), 0, _MENDED)}
    if not isinstance(pool, SentinelConnectionPool):
        return redis.Redis(connection_pool=redis.ConnectionPool(**options))
    options.pop("connection_pool")
    return redis.Redis(connection_pool=SentinelConnectionPool(pool.service_name, pool.sentinel_manager, **options))


def _by_sentinel(url: str, options: dict[str, Any]) -> redis.Redis:
    """Return a client of the master of a service. Raises ValueError when the URL names none."""
    scheme, rest = url.split("+sentinel://", 1)
    authority, _, path = rest.partition("/")
    credentials, _, hosts = authority.rpartition("@")
    names, _, query = path.partition("?")
    service, _, database = names.partition("/")
    if not service:
        raise ValueError("no service is named")
    # redis-py reads what is common to all its URLs: credentials, database and options.
    plain = f"{scheme}://{credentials}@host/{database}?{query}"
    pool = redis.ConnectionPool.from_url(plain, **options)
    master: dict[str, Any] = {**pool.connection_kwargs, "ssl": issubclass(pool.connection_class, redis.SSLConnection)}
    del master["host"]
    asked = {name: master[name] for name in master if name.startswith("ssl")}
    asked |= {name: master.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    asked |= {"socket_connect_timeout": _ASK, "socket_timeout": _ASK, "retry": Retry(NoBackoff(), 0)}
    sentinel: Any = Sentinel([_address(host) for host in hosts.split(",")], sentinel_kwargs=asked)
    return sentinel.master_for(service, **master)  # type: ignore[no-any-return]


def _address(host: str) -> tuple[str, int]:
    """Return host and port of `host[:port]`; an IPv6 address stands in brackets."""
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError("a host is missing")
    return parts.hostname, parts.port or _SENTINEL_PORT


def check_server(client: redis.Redis) -> str:
    """
    Return the server's name and version; warn in the log of one that may drop keys.

    Raises `IncompatibleServer` when it has no BLMPOP.
    """
    info: Any = client.info("server")
    name = "valkey" if "valkey_version" in info else "redis"
    version, oldest = info[f"{name}_version"], _OLDEST_VALKEY if name == "valkey" else _OLDEST_REDIS
    if _numbers(version) < oldest:
        raise IncompatibleServer(f"{name} {version} is too old: FlowForge needs Redis 7.0 or Valkey 7.2")
    if policy := eviction_policy(client):
        logger.warning("redis.may_drop_keys maxmemory-policy=%s remedy=%s", policy, EVICTION_REMEDY)
    return f"{name} {version}"


def eviction_policy(client: redis.Redis) -> str | None:
    """Return the policy by which the server drops keys when its memory is full; None if it keeps them, or is silent."""
    info: Any = client.info("memory")
    policy: str | None = info.get("maxmemory_policy")
    return None if policy == "noeviction" else policy


def _numbers(version: str) -> tuple[int, ...]:
    parts: Iterable[str] = version.split(".")[:2]
    return tuple(int(part) for part in parts)
