"""The workload: settings, the model's steps, their memory."""
