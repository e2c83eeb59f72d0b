"""Parts of fine-tuning, which distillation also uses: recipe, data, network, scores."""
