"""What people look at: curves, model cards, samples, tables of a grid."""
