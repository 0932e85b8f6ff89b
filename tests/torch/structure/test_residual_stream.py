"""Which values one orthogonal matrix can turn, in models whose structure is known by hand."""

import torch
from torch import nn

from neural_compressor.torch.structure.residual_stream import find_spaces

WIDTH, HEADS = 12, 3


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(x.shape))


class Written(nn.Module):
    """Attention in plain products."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        a = self.inner
        q, k, v = (f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for f in (a.q, a.k, a.v))
        weights = torch.softmax(q @ k.transpose(-1, -2) / 2, dim=-1)
        return a.o((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 20), nn.Linear(20, WIDTH)
        self.act = nn.ReLU()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, block=Block):
        super().__init__()
        self.embed, self.positions = nn.Embedding(17, WIDTH), nn.Embedding(9, WIDTH)
        self.blocks = nn.ModuleList([block(), block()])
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 17, bias=False)

    def forward(self, ids):
        x = self.embed(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


IDS = ((torch.arange(10).reshape(2, 5),), {})


def spaces_of(model, call=IDS):
    return find_spaces(model.eval(), [call])


def test_the_stream_and_the_values_of_heads():
    stream, *others = spaces_of(Model())
    assert stream.can_turn
    assert stream.width == WIDTH
    inside = [f"blocks.{i}.{name}" for i in range(2) for name in ("attention.o", "down")]
    assert set(stream.writers) == {"embed", "positions", *inside}
    reads = {f"blocks.{i}.attention.{n}": f"blocks.{i}.norm1" for i in range(2) for n in "qkv"}
    assert stream.readers == reads | {f"blocks.{i}.up": f"blocks.{i}.norm2" for i in range(2)} | {"head": "norm"}
    assert [(s.width, s.writers, list(s.readers)) for s in others] == [
        (WIDTH // HEADS, (f"blocks.{i}.attention.v",), [f"blocks.{i}.attention.o"]) for i in range(2)
    ]


def test_attention_in_plain_products():
    model = Model()
    for block in model.blocks:
        block.attention = Written(block.attention)
    stream, *others = spaces_of(model)
    assert stream.can_turn
    assert [s.width for s in others if s.can_turn] == [WIDTH // HEADS] * 2


def reasons(model, call=IDS):
    return spaces_of(model, call)[0].obstacles


def test_a_gain_that_is_added_is_an_obstacle():
    class Post(Block):
        def forward(self, x):
            return self.norm2(x + self.attention(x))

    assert any("adds what norm 'blocks.0.norm2' gives" in why for why in reasons(Model(Post)))


def test_a_gain_by_channel_is_an_obstacle():
    class Scaled(Block):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x):
            return x + self.attention(self.norm1(x)) * self.scale

    assert any("mul in 'blocks.0'" in why for why in reasons(Model(Scaled)))


def test_a_number_by_which_all_is_multiplied_is_none():
    class Scaled(Block):
        def forward(self, x):
            gate = torch.sigmoid(x.detach().new_zeros(x.shape[0], 1, 1))
            x = x * 0.5 + self.attention(self.norm1(x)) * torch.tensor(2.0) * gate
            return x + self.down(self.act(self.up(self.norm2(x))))

    assert spaces_of(Model(Scaled))[0].can_turn


def test_what_is_added_to_every_channel_is_an_obstacle():
    class Shifted(Block):
        def forward(self, x):
            return super().forward(x) + 1

    assert any("add in 'blocks.0'" in why for why in reasons(Model(Shifted)))


def test_a_parameter_that_is_added_is_an_obstacle():
    class WithToken(Model):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.ones(1, 1, WIDTH))

        def forward(self, ids):
            return self.head(self.norm(self.blocks[0](self.embed(ids) + self.token)))

    assert any("parameter or constant" in why for why in reasons(WithToken()))


def test_outputs_and_inputs_are_seen_outside():
    class Hidden(Model):
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    found = reasons(Hidden(), ((torch.randn(1, 5, WIDTH),), {}))
    assert "it is given to the model" in found
    assert "it is an output of the model" in found


def test_a_module_that_looks_at_shapes_alone_is_no_obstacle():
    class Rotary(nn.Module):
        def forward(self, x, positions):
            return torch.cos(positions.to(x.dtype))

    class WithRotary(Model):
        def __init__(self):
            super().__init__()
            self.rotary = Rotary()

        def forward(self, ids):
            x = self.embed(ids)
            self.rotary(x, torch.arange(ids.shape[1]))
            return self.head(self.norm(self.blocks[1](self.blocks[0](x + self.positions(ids % 9)))))

    assert spaces_of(WithRotary())[0].can_turn


def test_means_that_are_subtracted_are_noted():
    model = Model()
    model.blocks[1].norm1 = nn.LayerNorm(WIDTH)
    assert spaces_of(model)[0].keeps_mean
    assert not spaces_of(Model())[0].keeps_mean


def test_ways_that_differ_from_call_to_call_are_put_together():
    class Branching(Model):
        def forward(self, ids):
            x = self.blocks[1](self.blocks[0](self.embed(ids) + self.positions(ids % 9)))
            x = torch.sin(x) if ids.shape[1] > 5 else x
            return self.head(self.norm(x))

    longer = ((torch.arange(12).reshape(2, 6),), {})
    model = Branching().eval()
    assert find_spaces(model, [IDS])[0].can_turn
    assert not find_spaces(model, [IDS, longer])[0].can_turn


def test_a_layer_that_is_given_nothing_is_no_obstacle():
    class Empty(Model):
        def forward(self, ids):
            x = self.norm(self.blocks[1](self.blocks[0](self.embed(ids) + self.positions(ids % 9))))
            self.head(x[:, :0])
            return self.head(x)

    assert spaces_of(Empty())[0].can_turn


def test_a_layer_behind_different_norms_is_an_obstacle():
    class Twice(Model):
        def forward(self, ids):
            x = self.blocks[0](self.embed(ids))
            return self.head(x) + self.head(self.norm(x))

    assert "'head' reads it behind different norms" in reasons(Twice())


def test_a_module_that_fails_on_other_inputs_is_an_obstacle():
    class Choosy(nn.Module):
        def forward(self, x):
            if x.shape[0] != 2:
                raise KeyError("two samples")
            return torch.tanh(x)

    class WithChoosy(Model):
        def __init__(self):
            super().__init__()
            self.choosy = Choosy()

        def forward(self, ids):
            return self.head(self.choosy(self.blocks[0](self.embed(ids))))

    assert any("Choosy 'choosy'" in why for why in reasons(WithChoosy()))


def test_layers_that_the_data_did_not_reach_are_an_obstacle():
    class Seeing(Model):
        """Takes features of images too, which it puts in front."""

        def __init__(self):
            super().__init__()
            self.features = nn.Linear(5, WIDTH)

        def forward(self, ids, image=None):
            x = self.embed(ids) + self.positions(ids % 9)
            x = x if image is None else torch.cat([self.features(image), x], dim=1)
            return self.head(self.norm(self.blocks[1](self.blocks[0](x))))

    model, image = Seeing().eval(), torch.randn(2, 3, 5)
    (found,) = find_spaces(model, [IDS])[0].obstacles
    assert "the data did not use 'features.weight' and 1 more parameters or buffers of that width" in found
    stream = find_spaces(model, [IDS, (IDS[0], {"image": image})])[0]
    assert stream.can_turn
    assert "features" in stream.writers


def test_a_parameter_whose_type_alone_was_read_was_not_used():
    class WithToken(Model):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.ones(1, 1, WIDTH))

        def forward(self, ids, first=False):
            x = self.embed(ids).to(self.token.dtype) + self.positions(ids % 9)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) if first else x
            return self.head(self.norm(self.blocks[1](self.blocks[0](x))))

    assert any("did not use 'token'" in why for why in reasons(WithToken()))


def test_a_parameter_that_functions_read_was_used():
    class Functional(Model):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, ids):
            x = super().forward(ids)
            return x + nn.functional.linear(torch.ones(WIDTH), self.inner.weight, self.inner.bias).sum()

    assert spaces_of(Functional())[0].can_turn
