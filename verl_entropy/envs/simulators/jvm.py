# SPDX-License-Identifier: Apache-2.0
"""A Java virtual machine for one environment: bounded memory, killed with it, clear messages; for simulators behind py4j."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Iterable
from typing import Any

INSTALL_JAVA = (
    "install a Java 17 runtime (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
    "conda: conda install -c conda-forge openjdk=17) or set JAVA_HOME"
)


def find_java() -> str:
    """The java program of JAVA_HOME, else of PATH; ValueError says how to get one."""
    home = os.environ.get("JAVA_HOME")
    found = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not found or not os.path.isfile(found):
        raise ValueError(f"java={found or 'not found'!r}: no Java runtime (JAVA_HOME={home!r}); {INSTALL_JAVA}")
    return found


class Jvm:
    """Runs ``jar`` under py4j's gateway, reachable from this machine only and with a password.

    The Java side ends when this object is closed or collected, and, since it reads its standard input, when
    this process ends in any way.
    """

    def __init__(self, jar: str, *, memory_mb: int, options: Iterable[str] = ()):
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        java = find_java()
        # One collector thread: dozens of machines share a host, and each has little to collect.
        options = [f"-Xmx{memory_mb}m", "-XX:+UseSerialGC", *options]
        with tempfile.TemporaryFile() as errors:
            try:
                port, password, self.process = launch_gateway(
                    classpath=jar,
                    javaopts=options,
                    java_path=java,
                    cwd=os.path.dirname(jar),  # TextWorldExpress reads files there
                    die_on_exit=True,
                    enable_auth=True,
                    return_proc=True,
                    redirect_stderr=errors,
                )
            except (OSError, ValueError) as error:  # no port on its standard output: it did not start
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip()[:500] or str(error)
                raise ValueError(f"java={java!r}: did not start ({said}); {INSTALL_JAVA}") from error
        # Without memory management: its finalizers talk to a Java side that may be dead. ``strings`` frees instead.
        parameters = GatewayParameters(port=port, auth_token=password, enable_memory_management=False)
        self._gateway = JavaGateway(gateway_parameters=parameters, java_process=self.process)
        self.jvm = self._gateway.jvm
        self.kill = weakref.finalize(self, _end, self.process)
        """End the Java side at once; may be called from any thread, and more than once."""

    def strings(self, java_list: Any) -> list[str]:
        """A Java list of strings in one message instead of one per item."""
        joined = self.jvm.java.lang.String.join("\n", java_list)
        self._gateway.detach(java_list)
        return joined.split("\n") if joined else []

    def close(self) -> None:
        """End the Java side and free what the connection holds."""
        self.kill()
        self._gateway.close()


def _end(process: subprocess.Popen) -> None:
    # The simulators keep nothing that needs an orderly end.
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
