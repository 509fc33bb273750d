# Runs the demo: `docker build --tag asterism .`, then `docker run --rm --shm-size=2g -v "$PWD/demo:/work/demo" asterism`.
# For NVIDIA GPUs: `docker build --build-arg VARIANT=cuda --tag asterism:cuda .`, then `docker run --gpus all …`.
ARG VARIANT=cpu

FROM python:3.12-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# The usual torch brings CUDA's libraries. The index of torch's CPU builds has the same versions, a tenth of the size, which
# pip prefers because of their suffix "+cpu".
FROM base AS cuda
FROM base AS cpu
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu

FROM ${VARIANT}
WORKDIR /opt/asterism
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY asterism ./asterism
RUN pip install --constraint constraints.txt '.[all]'

RUN useradd --create-home --uid 1000 asterism && mkdir -p /work/demo && chown -R asterism /work
USER asterism
WORKDIR /work
ENTRYPOINT ["asterism"]
CMD ["demo", "--out", "demo", "--overwrite"]
