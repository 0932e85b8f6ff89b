"""Imports that programs written for the 2.x, 3.x and ONNX APIs make."""

import importlib

import pytest

IMPORTS = {
    "neural_compressor": """
        PostTrainingQuantConfig QuantizationAwareTrainingConfig MixedPrecisionConfig AccuracyCriterion TuningCriterion
        Metric METRICS Model BenchmarkConfig mix_precision benchmark quantization training options
        set_workspace set_random_seed set_resume_from set_tensorboard""",
    "neural_compressor.config": """
        PostTrainingQuantConfig QuantizationAwareTrainingConfig MixedPrecisionConfig AccuracyCriterion TuningCriterion
        BenchmarkConfig Torch2ONNXConfig options""",
    "neural_compressor.quantization": "fit",
    "neural_compressor.benchmark": "fit BenchmarkConfig",
    "neural_compressor.evaluation.lm_eval": "evaluate LMEvalParser",
    "neural_compressor.mix_precision": "fit MixedPrecisionConfig",
    "neural_compressor.training": "prepare_compression fit",
    "neural_compressor.metric": "METRICS BaseMetric Metric TensorflowTopK GeneralTopK",
    "neural_compressor.model": "Model",
    "neural_compressor.objective": "objectives",
    "neural_compressor.utils": "logger",
    "neural_compressor.utils.create_obj_from_config": "create_dataloader create_dataset",
    "neural_compressor.utils.constant": "FP32 BF16 INT8_SYM_MINMAX_PERCHANNEL UINT8_ASYM_KL_PERTENSOR",
    "neural_compressor.utils.pytorch": "load",
    "neural_compressor.utils.utility": "LazyImport",
    "neural_compressor.utils.load_huggingface": "save_for_huggingface_upstream OptimizedModel",
    "neural_compressor.adaptor.pytorch": "get_torch_version",
    "neural_compressor.common": "logger Logger dump_elapsed_time",
    "neural_compressor.data": "DATALOADERS DataLoader Datasets DefaultDataLoader ComposeTransform TRANSFORMS",
    "neural_compressor.data.dataloaders.dataloader": "DATALOADERS DataLoader",
    "neural_compressor.data.dataloaders.default_dataloader": "DefaultDataLoader",
    "neural_compressor.data.dataloaders.onnxrt_dataloader": "DefaultDataLoader ONNXRTDataLoader",
    "neural_compressor.data.dataloaders.pytorch_dataloader": "PyTorchDataLoader",
    "neural_compressor.adaptor.torch_utils.layer_wise_quant": "load_empty_model",
    "neural_compressor.adaptor.torch_utils.waq": "TorchSmoothQuant",
    "neural_compressor.adaptor.torch_utils.auto_round": "get_dataloader",
    "neural_compressor.torch.utils": """
        accelerator auto_detect_accelerator get_torch_version logger is_hpex_available is_hpu_available forward_wrapper
        get_double_quant_config_dict get_model_device get_model_info get_used_cpu_mem_MB get_used_hpu_mem_MB
        move_input_device SaveLoadFormat LoadFormat ProcessorType is_ipex_available""",
    "neural_compressor.torch.utils.llm_utility": "initialize_model_and_tokenizer get_default_llm_dataloader llm_benchmark",
    "neural_compressor.torch.utils.block_wise": "block_wise_calibration",
    "neural_compressor.torch.algorithms.smooth_quant": "move_input_to_device TorchSmoothQuant",
    "neural_compressor.torch.algorithms.layer_wise": "load_empty_model LWQ_WORKSPACE load_first_layer_only",
    "neural_compressor.torch.algorithms.weight_only.autoround": "get_dataloader",
    "neural_compressor.torch.algorithms.weight_only.modules": "INCWeightOnlyLinear",
    "neural_compressor.transformers": """
        Qwen2VLForConditionalGeneration MllamaForConditionalGeneration LlavaForConditionalGeneration AutoModelForCausalLM
        generation""",
    "neural_compressor.transformers.quantization.utils": "convert_dtype_str2torch",
    "neural_compressor.transformers.generation": "GenerationConfig",
    "onnx_neural_compressor": "logger utility data_reader",
    "onnx_neural_compressor.logger": "info warning Logger",
    "onnx_neural_compressor.utility": "LazyImport set_workspace",
    "onnx_neural_compressor.algorithms": "Smoother",
    "onnx_neural_compressor.utils.base_tuning": "TuningConfig",
    "onnx_neural_compressor.data_reader": "CalibrationDataReader",
    "onnx_neural_compressor.quantization": """
        quantize QuantType QuantFormat CalibrationMethod config tuning algorithm_entry matmul_4bits_quantizer
        matmul_nbits_quantizer autotune StaticQuantConfig SmoothQuantConfig""",
    "onnx_neural_compressor.quantization.matmul_4bits_quantizer": """
        MatMul4BitsQuantizer RTNWeightOnlyQuantConfig GPTQWeightOnlyQuantConfig""",
    "onnx_neural_compressor.quantization.matmul_nbits_quantizer": "MatMulNBitsQuantizer",
    "onnx_neural_compressor.quantization.tuning": """
        autotune TuningConfig Evaluator Sampler SequentialSampler ConfigLoader get_all_config_set""",
    "onnx_neural_compressor.quantization.config": """
        ComposableConfig config_registry ExtraOptions StaticQuantConfig DynamicQuantConfig RTNConfig GPTQConfig AWQConfig
        SmoothQuantConfig get_woq_tuning_config""",
    "onnx_neural_compressor.quantization.algorithm_entry": "rtn_quantize_entry static_quantize_entry",
    "neural_compressor.torch.export": "export export_model_for_pt2e_quant",
    "neural_compressor.torch": "load_empty_model",
    "neural_compressor.torch.quantization": """
        get_default_qat_module_mappings
        prepare convert quantize autotune save load prepare_qat finalize_calibration TuningConfig get_all_config_set
        get_rtn_double_quant_config_set INT8StaticQuantConfig get_default_fp8_config_set HybridGPTQConfig
        get_default_mixed_precision_config_set RTNConfig GPTQConfig AWQConfig TEQConfig HQQConfig AutoRoundConfig FP8Config
        MXQuantConfig SmoothQuantConfig StaticQuantConfig DynamicQuantConfig MixedPrecisionConfig""",
    "neural_compressor.torch.quantization.autotune": """
        autotune TuningConfig get_all_config_set get_rtn_double_quant_config_set""",
    "neural_compressor.torch.quantization.quantize": "quantize prepare convert",
    "neural_compressor.torch.quantization.save_load_entry": "save load",
    "neural_compressor.torch.quantization.config": "RTNConfig get_default_rtn_config INT8StaticQuantConfig",
    "neural_compressor.common.base_tuning": """
        TuningConfig Evaluator EvaluationFuncWrapper Sampler SequentialSampler ConfigSet ConfigLoader TuningMonitor
        init_tuning""",
    "neural_compressor.common.base_config": "BaseConfig ComposableConfig register_config config_registry",
    "neural_compressor.common.utils": """
        LazyImport set_workspace set_random_seed set_tensorboard set_resume_from DEFAULT_WORKSPACE dump_elapsed_time""",
    "neural_compressor.tensorflow.utils": "BaseDataLoader DummyDataset DummyDatasetV2",
}
"""Names by the module they are imported from."""

OUT_OF_SCOPE = (
    "WeightPruningConfig",
    "DistillationConfig",
    "KnowledgeDistillationLossConfig",
    "NASConfig",
    "HPOConfig",
)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in IMPORTS.items() for name in names.split()]
)
def test_import(module, name):
    names = {}
    exec(f"from {module} import {name}", names)
    assert names[name] is not None


@pytest.mark.parametrize("module", ["neural_compressor", "neural_compressor.config", "neural_compressor.training"])
@pytest.mark.parametrize("name", OUT_OF_SCOPE)
def test_what_is_out_of_scope_says_so(module, name):
    with pytest.raises(ImportError, match=f"{name} is not here.*out of its scope"):
        exec(f"from {module} import {name}", {})


@pytest.mark.parametrize("name", ["TensorflowImageRecord", "BilinearImagenetTransform", "LabelShift"])
def test_what_reads_records_says_what_to_give(name):
    with pytest.raises(ImportError, match=rf"{name} is not here.*batches \(input, label\)"):
        exec(f"from neural_compressor.data import {name}", {})


def test_quantizers_in_onnx_models_need_no_second_step():
    with pytest.raises(ImportError, match="quant_format='QDQ'"):
        exec("from neural_compressor.config import ONNXQlinear2QDQConfig", {})


@pytest.mark.parametrize("module", ["compression", "compression.pruner", "compression.distillation.criterions"])
def test_modules_out_of_scope_say_so(module):
    with pytest.raises(ImportError, match=r"compression is not here.*out of its scope"):
        exec(f"from neural_compressor.{module} import Name", {})


@pytest.mark.parametrize("module", ["neural_compressor", "neural_compressor.config", "neural_compressor.training"])
def test_other_names_are_attribute_errors(module):
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = importlib.import_module(module).Nonsense
