"""Tests of the vector index and of the models of nearest neighbours."""
