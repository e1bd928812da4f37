"""The packed forward on a CPU, in torch and oneDNN."""
