"""What is run: settings, the model's steps, their memory."""
