import json

import zoo
from zoo.workflow.compressing import compress_run


def test_a_run_holds_its_compressed_network_and_the_measurements(tmp_path):
    options = {"net": "mlp:13-4-3", "num_steps": 5, "num_samples": 4, "compile": "off"}
    zoo.fit("mean_field", data="wine", out=tmp_path / "run", progress_bar=False, **options)
    compression = compress_run(tmp_path / "run", onnx=False)
    assert json.loads((tmp_path / "run" / "compression.json").read_text()) == compression.summary
    assert zoo.compress.load(tmp_path / "run" / "compressed") is not None
    assert not (tmp_path / "run" / "compressed" / "network.onnx").exists()
    assert "Before and after" in (tmp_path / "run" / "report.html").read_text()
