"""Checks of torch.distributed's operations: functions named `check_*`, which all ranks run."""
