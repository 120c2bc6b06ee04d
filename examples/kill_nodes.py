"""Simulate thirty nodes, kill three and the tracker, and see that nothing is lost."""

from anabranch.sim.scenario import Run, Scenario

scenario = Scenario(nodes=30, crash_at_s=(3.0, 6.0, 9.0), tracker_crash_at_s=(5.0,))
report = Run(scenario, seed=1).go().report()

print("delivered", report["deliveries"], "times")
print("lost at nodes alive throughout:", report["lost_at_nodes_alive_throughout"])
print("rules broken:", report["violations"])
