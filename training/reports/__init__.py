"""Reports for people: curves, model cards, samples, tables of a grid."""
