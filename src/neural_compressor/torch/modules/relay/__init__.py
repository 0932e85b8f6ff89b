"""Int8 tensors handed from op to op, through additions and activations, without going through float."""

from neural_compressor.torch.modules.relay.forward import RelayedForward, Relays, relay, relayed, restore

__all__ = ["RelayedForward", "Relays", "relay", "relayed", "restore"]
