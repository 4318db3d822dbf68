# CometMQ in a container. Build: docker build -t cometmq .   Without the compiled core: --build-arg CORE=pure
ARG PYTHON=3.12
ARG CORE=compiled

# The package and what its servers depend on, as wheels. The package has the hash of the core that fits it: native is needed.
FROM python:${PYTHON}-slim-bookworm AS package
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
COPY native native
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[server]'

# The compiled core: one wheel, or none.
FROM rust:1.85-slim-bookworm AS core-compiled
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir --break-system-packages "maturin>=1.7,<2"
WORKDIR /source/native
COPY native .
RUN maturin build --release --strip --out /core

FROM python:${PYTHON}-slim-bookworm AS core-pure
RUN mkdir /core

# hadolint ignore=DL3006
FROM core-${CORE} AS core

FROM python:${PYTHON}-slim-bookworm
LABEL org.opencontainers.image.title="CometMQ" \
      org.opencontainers.image.description="Apache RocketMQ in Python: nameserver, broker and console" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN --mount=type=bind,from=package,source=/wheels,target=/wheels \
    --mount=type=bind,from=core,source=/core,target=/core \
    find /wheels /core -name '*.whl' -exec pip install --no-cache-dir --no-index --no-deps {} + \
    && groupadd --gid 10001 comet \
    && useradd --uid 10001 --gid comet --no-create-home --shell /usr/sbin/nologin comet \
    && install -d -o comet -g comet -m 0750 /data
USER 10001:10001
# Nothing is written but below /data: the root may be read-only.
ENV PYTHONDONTWRITEBYTECODE=1 \
    HOME=/data \
    READY_URL=http://127.0.0.1:5557/readyz
VOLUME /data
WORKDIR /data
# Nameserver, broker, gRPC, console, and both ports for monitoring.
EXPOSE 9876 10911 8081 8080 5556 5557
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['READY_URL'], timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["cometmq"]
CMD ["serve", "--host", "0.0.0.0", "--data", "/data", "--no-console"]
