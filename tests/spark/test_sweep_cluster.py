"""A sweep on a real cluster, with one of its two executors killed while it computes."""

import subprocess
import sys

from typer.testing import CliRunner

from anabranch.cli.lab import app
from spark.cluster import PATIENCE_S, Cluster
from support.processes import child
from support.waiting import limit

SWEEP = ["run", "propagation", "--nodes", "24", "--repeats", "240", "--json"]


def test_a_sweep_on_a_cluster_outlives_an_executor(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "anabranch", "lab", *SWEEP]
    engine = ["--engine", "spark", "--master", cluster.master]
    with child(
        [*command, *engine], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            killed = cluster.kill_one_at_work(job)  # which sees both at work before
            out, err = job.communicate(timeout=limit(PATIENCE_S))
        finally:
            job.kill()
    assert (job.returncode, err) == (0, "")
    assert killed not in cluster.executors()
    here = CliRunner().invoke(app, SWEEP)
    assert out == here.stdout != ""
