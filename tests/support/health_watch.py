"""A process that asks `/healthz` until its input ends, then prints the slowest answer in seconds.

Run as `python health_watch.py HOST PORT`. It stands apart from the load's own loop, whose delays
are not the router's.
"""

import http.client
import select
import sys
import time

_INTERVAL_S = 0.1


def slowest_answer_s(host: str, port: int) -> float:
    """Ask on a fresh connection each time, as an orchestrator's probe does."""
    worst_s = 0.0
    while not select.select([sys.stdin], [], [], _INTERVAL_S)[0]:
        began = time.monotonic()
        connection = http.client.HTTPConnection(host, port, timeout=30)
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
        connection.close()
        if status != 200:
            return float("inf")
        worst_s = max(worst_s, time.monotonic() - began)
    return worst_s


if __name__ == "__main__":
    sys.stdout.write(f"{slowest_answer_s(sys.argv[1], int(sys.argv[2]))}\n")
