"""Adapters of Bertline's client to other libraries. Each module needs only its own library.

sentence_transformers   Encoder: `encode` and `similarity` of SentenceTransformer (does not need the library)
langchain               BertlineEmbeddings: LangChain embeddings
mteb                    BertlineEncoder: model for the benchmark MTEB
"""
