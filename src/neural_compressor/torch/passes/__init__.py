"""Steps on the whole float model: folding normalisations, absorbing scales of inputs."""
