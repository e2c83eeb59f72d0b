"""Operations of the client, a module each: the request, the reading of the reply, and the inputs of the bench."""
