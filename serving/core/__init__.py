"""What the server does with requests, whatever protocol they come by: admission, batching, models, metrics."""
