"""Redis as others run it: with a password, behind TLS, and watched by a Sentinel."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import redis

from flowforge.embedded import wheels
from flowforge.embedded.servers import ValkeyServer
from tests.support import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.embedded.guardian import Order

PASSWORD = "pass:w@rd/?"
QUOTED = "pass%3Aw%40rd%2F%3F"
#: A service as a Sentinel calls it.
SERVICE = "runway"

_REDIS, _OPENSSL = shutil.which("redis-server"), shutil.which("openssl")
_SENTINEL = """
port {port}
bind 127.0.0.1
requirepass {password}
sentinel monitor {service} 127.0.0.1 {master} 1
sentinel auth-pass {service} {password}
sentinel down-after-milliseconds {service} 500
sentinel failover-timeout {service} 2000
"""


def follow(replica: redis.Redis, master: ValkeyServer) -> None:
    """Make a server the replica of another, and wait until it holds the same."""
    with redis.Redis.from_url(master.url) as leader:
        leader.config_set("repl-diskless-sync-delay", 0)
    replica.replicaof("127.0.0.1", master.port)  # type: ignore[no-untyped-call]
    wait_for(lambda: replica.info("replication")["master_link_status"] == "up")  # type: ignore[index]


needs_tls = pytest.mark.skipif(
    not (_REDIS and _OPENSSL), reason="Valkey's wheel has no TLS: apt-get install redis-server openssl"
)


class GuardedServer(ValkeyServer):
    """Valkey with a password."""

    def __init__(self, **options: str) -> None:
        super().__init__(options={"requirepass": PASSWORD, "masterauth": PASSWORD, **options})

    @property
    def url(self) -> str:
        """The URL, password included."""
        return f"redis://:{QUOTED}@127.0.0.1:{self.port}/0"

    def ready(self) -> bool:
        """Ask who answers."""
        with redis.Redis.from_url(self.url) as client:
            try:
                return client.info("server")["process_id"] == self.pid  # type: ignore[index, no-any-return]
            except redis.ConnectionError:
                return False


class TlsServer(GuardedServer):
    """Debian's Redis behind TLS, with a certificate of its own for 127.0.0.1."""

    def __init__(self, directory: Path) -> None:
        self.certificate, key = directory / "certificate.pem", directory / "key.pem"
        words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=here -addext subjectAltName=IP:127.0.0.1"
        files = ["-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run([str(_OPENSSL), *words.split(), *files], check=True, capture_output=True)
        tls = {"tls-cert-file": str(self.certificate), "tls-key-file": str(key), "tls-auth-clients": "no"}
        super().__init__(**tls)

    @property
    def url(self) -> str:
        """The URL, with the certificate to trust."""
        return f"rediss://:{QUOTED}@127.0.0.1:{self.port}/0?ssl_ca_certs={self.certificate}"

    def order(self) -> Order:
        """Return Valkey's command, with another program and no port without TLS."""
        self.options |= {"port": "0", "tls-port": str(self.port)}
        order = super().order()
        return order._replace(command=[str(_REDIS), *order.command[1:]])


class SentinelServer(GuardedServer):
    """A Sentinel, and with a password too, that watches one master."""

    name = "sentinel"

    def __init__(self, master: ValkeyServer) -> None:
        super().__init__()
        self._master = master.port

    @property
    def service_url(self) -> str:
        """FlowForge's URL of the service; the first of the Sentinels does not answer."""
        hosts = f"127.0.0.1:1,127.0.0.1:{self.port}"
        return f"redis+sentinel://:{QUOTED}@{hosts}/{SERVICE}/0?sentinel_password={QUOTED}"

    def order(self) -> Order:
        """Write the configuration; return the command."""
        file = self.data / "sentinel.conf"
        password = f'"{PASSWORD}"'
        file.write_text(_SENTINEL.format(port=self.port, master=self._master, service=SERVICE, password=password))
        return super().order()._replace(command=[str(wheels.valkey()), str(file), "--sentinel"])
