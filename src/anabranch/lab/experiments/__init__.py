"""The experiments by name: one file each."""

from anabranch.lab.experiment import Experiment
from anabranch.lab.experiments import (
    aws16,
    emulation,
    prediction,
    propagation,
    randomness,
    workload,
)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        aws16.EXPERIMENT,
        randomness.EXPERIMENT,
        propagation.EXPERIMENT,
        workload.EXPERIMENT,
        prediction.EXPERIMENT,
        emulation.EXPERIMENT,
    )
}
