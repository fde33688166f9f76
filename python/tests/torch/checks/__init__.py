"""Checks of the operations of torch.distributed: functions whose names begin with `check_`, for all ranks to carry out."""
