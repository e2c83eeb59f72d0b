"""Bertline where other libraries expect a model of their own; each module needs its library, and nothing else does.

sentence_transformers   Encoder: `encode` and `similarity` as SentenceTransformer has them (without the library)
langchain               BertlineEmbeddings: embeddings of LangChain
mteb                    BertlineEncoder: a model that the benchmark MTEB evaluates
"""
