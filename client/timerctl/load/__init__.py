"""The load test: `timerctl load`. harness/ has the processes that register and fire.

trial.py is a run from its beginning to its end. judge.py judges its operations one by one, report.py prints the result.
own_daemon.py starts the daemon of `--own`, room.py refuses a run that does not fit, ring.py reads when events were
applied. Not here: the plan of a run, which follows from the workload and its seed (timerd_client.workload).
"""
