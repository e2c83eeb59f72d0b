"""Commands that make models by calling the stages: the demo, the models in models/, the paper's ablations."""
