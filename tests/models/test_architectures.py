"""Architectures of timm, torchvision and transformers from end to end, or refused in words; random weights."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn
from torch.testing import assert_close

import memwrap
from memwrap import WrapError, encoders
from memwrap.models.architectures import describe

CLASSES = 7


def of_timm(name: str, **arguments: object) -> nn.Module:
    return timm.create_model(name, num_classes=CLASSES, **arguments)


def of_torchvision(name: str, **arguments: object) -> nn.Module:
    return torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **arguments)


def of_transformers(name: str, **arguments: object) -> nn.Module:
    configuration = getattr(transformers, f"{name}Config")(num_labels=CLASSES, **arguments)
    return getattr(transformers, f"{name}ForImageClassification")(configuration)


SMALL_TRANSFORMER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 64,
}
SMALL_PVT = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 4]}
SMALL_PYRAMID = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}

WRAPPED: dict[str, Callable[[], nn.Module]] = {
    **{
        f"timm {name}": lambda name=name: of_timm(name)
        for name in (
            "resnet10t",
            "resnet50",
            "mobilenetv3_small_050",
            "efficientnet_lite0",
            "lcnet_050",
            "tinynet_e",
            "mnasnet_small",
            "ghostnet_100",
            "regnetx_002",
            "densenet121",
            "dla34",
            "dpn68",
            "hrnet_w18_small",
            "vit_tiny_patch16_224",
            "deit_tiny_patch16_224",
            "cait_xxs24_224",
            "xcit_nano_12_p16_224",
            "convit_tiny",
            "mixer_s32_224",
            "resmlp_12_224",
            "convnext_atto",
            "edgenext_xx_small",
            "mobilevit_xxs",
            "poolformer_s12",
            "pvt_v2_b0",
            "visformer_tiny",
            "swin_tiny_patch4_window7_224",
            "efficientvit_b0",
            "efficientvit_m0",
            "fastvit_t8",
        )
    },
    "timm with arguments": lambda: of_timm("vit_tiny_patch16_224", img_size=64),
    "timm by our name": lambda: encoders.create("timm:vit_tiny_patch16_224", CLASSES, img_size=64, drop_path_rate=0.1),
    **{
        f"torchvision {name}": lambda name=name: of_torchvision(name)
        for name in (
            "resnet18",
            "googlenet",
            "inception_v3",
            "mobilenet_v2",
            "mobilenet_v3_small",
            "shufflenet_v2_x0_5",
            "efficientnet_b0",
            "mnasnet0_5",
            "regnet_y_400mf",
            "convnext_tiny",
            "swin_t",
        )
    },
    "torchvision googlenet without auxiliary heads": lambda: of_torchvision(
        "googlenet", aux_logits=False, init_weights=False
    ),
    "transformers ViT": lambda: of_transformers("ViT", **SMALL_TRANSFORMER),
    "transformers DeiT": lambda: of_transformers("DeiT", **SMALL_TRANSFORMER),
    "transformers Beit": lambda: of_transformers("Beit", **SMALL_TRANSFORMER),
    "transformers Swin": lambda: of_transformers(
        "Swin", embed_dim=16, depths=[1, 1], num_heads=[2, 4], image_size=64, window_size=4, path_norm=True
    ),
    # Its windows are as large as its last images: a pass changes their sizes.
    "transformers Swin of large windows": lambda: of_transformers(
        "Swin", embed_dim=16, depths=[1, 2], num_heads=[2, 4], image_size=64, window_size=8
    ),
    "transformers ResNet": lambda: of_transformers("ResNet", embedding_size=8, **SMALL_PYRAMID),
    "transformers ConvNext": lambda: of_transformers("ConvNext", **SMALL_PYRAMID),
    # Their configurations have others in them.
    **{
        f"transformers {name}": lambda name=name: of_transformers(
            name, vision_config=SMALL_TRANSFORMER | {"patch_size": 16}, text_config={}
        )
        for name in ("CLIP", "Siglip")
    },
    "transformers MobileViT": lambda: of_transformers(
        "MobileViT", hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64], image_size=64
    ),
    "transformers PvtV2": lambda: of_transformers("PvtV2", image_size=64, **SMALL_PVT),
    "transformers MobileNetV2": lambda: of_transformers("MobileNetV2", depth_multiplier=0.35),
}

# Of those whose last layer is not just the last linear one.
LAST_LAYERS = {
    "timm dla34": "fc",
    "timm dpn68": "classifier",
    "timm efficientvit_m0": "head.linear",
    "timm convnext_atto": "head.fc",
    "torchvision googlenet": "fc",
    "torchvision inception_v3": "fc",
    "transformers ResNet": "classifier.1",
}

# The largest, which take images of any size: small ones, so that all of this ends soon.
ANY_SIZE = {
    "timm resnet50",
    "timm densenet121",
    "timm dla34",
    "timm dpn68",
    "timm hrnet_w18_small",
    "timm poolformer_s12",
    "timm efficientvit_b0",
    "timm fastvit_t8",
    "timm ghostnet_100",
    "timm efficientnet_lite0",
    "timm mobilevit_xxs",
    "timm pvt_v2_b0",
    "torchvision resnet18",
    "torchvision googlenet",
    "torchvision googlenet without auxiliary heads",
    "torchvision mobilenet_v2",
    "torchvision efficientnet_b0",
    "torchvision regnet_y_400mf",
    "torchvision convnext_tiny",
    "torchvision swin_t",
}

# These can be wrapped and saved, but their name and the few arguments that are known do not build them again.
NEED_THEIR_CLASSIFIER = {"timm with arguments"}

TWO_HEADS = "a memory can replace one last layer only: use a variant of the classifier with a single head"
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "timm levit": (
        lambda: of_timm("levit_128s"),
        f"averages the outputs of head.linear, head_dist.linear; {TWO_HEADS}",
    ),
    "timm deit distilled": (lambda: of_timm("deit_tiny_distilled_patch16_224"), f"of head, head_dist; {TWO_HEADS}"),
    "timm pit": (lambda: of_timm("pit_ti_distilled_224"), f"of head, head_dist; {TWO_HEADS}"),
    "timm efficientformer": (lambda: of_timm("efficientformer_l1"), f"of head, head_dist; {TWO_HEADS}"),
    "timm repvit": (lambda: of_timm("repvit_m0_9"), f"of head.head.l, head.head_dist.l; {TWO_HEADS}"),
    "timm crossvit": (lambda: of_timm("crossvit_tiny_240"), f"of head.0, head.1; {TWO_HEADS}"),
    "timm volo": (lambda: of_timm("volo_d1_224"), "aux_head takes (2, 196, 384), not one vector for each image"),
    "torchvision squeezenet": (
        lambda: of_torchvision("squeezenet1_1"),
        "classifier.1 takes (2, 512, 13, 13), not one vector for each image",
    ),
    "transformers deit with teacher": (
        lambda: transformers.DeiTForImageClassificationWithTeacher(
            transformers.DeiTConfig(num_labels=CLASSES, **SMALL_TRANSFORMER)
        ),
        f"of cls_classifier, distillation_classifier; {TWO_HEADS}",
    ),
}


def test_enough_architectures_are_tried() -> None:
    assert len(WRAPPED) + len(REFUSED) >= 30


# One of each kind of network in `make test`, all of them in `make test-slow`.
FEW = {
    *LAST_LAYERS,
    "timm resnet10t",
    "timm vit_tiny_patch16_224",
    "timm mixer_s32_224",
    "timm by our name",
    "timm with arguments",
    "torchvision resnet18",
    "torchvision swin_t",
    *(case for case in WRAPPED if case.startswith("transformers")),
}
CASES = [case if case in FEW else pytest.param(case, marks=pytest.mark.slow) for case in WRAPPED]


@pytest.mark.parametrize("case", CASES)
def test_trains_remembers_saves_and_loads(case: str, tmp_path: Path) -> None:
    classifier = WRAPPED[case]()
    model = memwrap.wrap(classifier, example=torch.zeros(2, 3, 96, 96) if case in ANY_SIZE else None).train()
    assert model.layer.num_classes == CLASSES
    assert model.origin.layer == LAST_LAYERS.get(case, model.origin.layer)
    shape = model.origin.image_shape

    logits = model(torch.randn(2, *shape), memory=torch.randn(3, *shape))
    assert logits.shape == (2, CLASSES)
    logits.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert any(parameter.grad is not None for parameter in model.encoder.parameters())
    assert all(parameter.grad is not None for parameter in model.layer.parameters())

    model.eval().remember(torch.randn(4, *shape), [0, 1, 2, 3])
    images = torch.randn(2, *shape)
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path, classifier=classifier if case in NEED_THEIR_CLASSIFIER else None)
    with torch.no_grad():
        assert_close(loaded(images), model(images), atol=0, rtol=0)


@pytest.mark.parametrize("case", REFUSED)
def test_is_refused_with_a_reason(case: str) -> None:
    build, message = REFUSED[case]
    with pytest.raises(WrapError, match=re.escape(message)):
        memwrap.wrap(build())


def test_an_architecture_with_settings_that_its_name_does_not_show_is_unknown() -> None:
    for classifier in (of_timm("resnet10t", drop_rate=0.3), of_torchvision("mobilenet_v3_small", dropout=0.5)):
        model = memwrap.wrap(classifier)
        assert describe(model.encoder, model.origin.layer, CLASSES, 3) is None


def test_arguments_that_cannot_be_stored_make_it_unknown() -> None:
    model = memwrap.wrap(encoders.create("timm:resnet10t", CLASSES, act_layer=nn.SiLU))
    assert describe(model.encoder, model.origin.layer, CLASSES, 3) is None


@pytest.mark.parametrize("form", ["scriptable", "exportable"])
def test_forms_of_a_network_of_timm_are_stored(form: str) -> None:
    model = memwrap.wrap(encoders.create("timm:efficientnet_lite0", CLASSES, **{form: True}))
    architecture = describe(model.encoder, model.origin.layer, CLASSES, 3)
    assert architecture is not None
    assert architecture.arguments[form] is True


def test_a_network_changed_by_hand_is_unknown() -> None:
    model = memwrap.wrap(encoders.create("tiny", CLASSES))
    assert describe(model.encoder, "head", CLASSES, 3) is not None
    model.encoder.features[1][0].stride = (1, 1)
    assert describe(model.encoder, "head", CLASSES, 3) is None
