"""The experiments by name: one file each."""

from anabranch.lab.experiment import Experiment
from anabranch.lab.experiments import (
    aws16,
    churn,
    complaints,
    diameter,
    emulation,
    fairness,
    prediction,
    propagation,
    randomness,
    redundancy,
    resilience,
    workload,
)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        aws16.EXPERIMENT,
        randomness.EXPERIMENT,
        diameter.EXPERIMENT,
        redundancy.EXPERIMENT,
        propagation.EXPERIMENT,
        workload.EXPERIMENT,
        prediction.EXPERIMENT,
        emulation.EXPERIMENT,
        resilience.EXPERIMENT,
        fairness.EXPERIMENT,
        complaints.EXPERIMENT,
        churn.EXPERIMENT,
    )
}
