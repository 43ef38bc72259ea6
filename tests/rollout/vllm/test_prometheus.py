from ogrpo.rollout.vllm.prometheus import parse, peaks

PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 3.0
vllm:num_requests_running{engine="1",model_name="policy"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="policy"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="policy"} 0.5
vllm:generation_tokens_total{engine="0",model_name="policy"} 1.2e+03
vllm:generation_tokens_created{engine="0",model_name="policy"} 1.7e+09
python_info{implementation="CPython",version="3.11.7"} 1.0
"""


def test_counts_add_up_over_engines_and_shares_do_not():
    assert parse(PAGE) == {
        "server/running": 7.0,
        "server/kv_cache_usage": 0.5,
        "server/generated_tokens": 1200.0,
    }


def test_peaks_are_of_what_comes_and_goes():
    first = {"server/running": 7.0, "server/generated_tokens": 5.0}
    second = {"server/running": 2.0, "server/waiting": 1.0, "server/generated_tokens": 9.0}
    assert peaks(first, second) == {"server/running": 7.0, "server/waiting": 1.0}
