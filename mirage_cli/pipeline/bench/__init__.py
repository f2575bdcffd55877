"""What `mirage bench` does: a program's best kernel timed beside its baselines.

`benchmark` makes a row; its baselines are eager PyTorch, attention (`sdpa`), convolutions (`convolution`) and what the
libraries of this machine offer (`library`). `gate` compares rows with those of an earlier run, `several` cuts a program
over the GPUs of this machine.
"""
