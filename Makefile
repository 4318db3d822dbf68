# The six things people do with a clone. `make` alone lists them.
.DEFAULT_GOAL := help
VENV := .venv
PY := $(VENV)/bin/python

.PHONY: help demo test lint docs bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## produce, consume, kill a broker; archive, audit, replay with Spark; compare every count
	@scripts/setup demo
	@$(PY) -m examples.demo --report demo-report

test: ## types, lint, import order and every test
	@scripts/setup test
	@$(PY) scripts/test

lint: ## types, lint and import order only
	@scripts/setup test
	@$(PY) scripts/test --only-lint

docs: ## the pages and the API reference as a site in build/site
	@scripts/setup test
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "look at it: $(PY) -m http.server --directory build/site, then http://localhost:8000"

bench: ## measure the broker beside Apache RocketMQ on this machine
	@scripts/setup test
	@$(PY) -m benchmarks.broker load

clean: ## remove what the targets above made, the .venv included
	rm -rf $(VENV) demo-report .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
