"""What a conversion did to a checkpoint: tensor by tensor, streaming, in bounded memory."""
