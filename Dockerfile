# raysim for a container engine, and for Ray clusters on Kubernetes. Build it in a clone:
#   docker build -t raysim .                            # torch for CPUs
#   docker build -t raysim --build-arg TORCH_INDEX= .   # torch with CUDA, from pip's own index
#   docker run --rm --shm-size 2g -v raysim:/home/ray raysim run mnist-fedavg

ARG PYTHON=3.11

FROM python:${PYTHON}-bookworm AS build
COPY . /raysim
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel /raysim

FROM python:${PYTHON}-slim-bookworm
# wget is what KubeRay asks a pod's health with.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget=1.* \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 ray
COPY constraints.txt /opt/raysim/
COPY --from=build /wheel /opt/raysim/
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --no-deps -c /opt/raysim/constraints.txt \
        ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch torchvision \
    && pip install --no-cache-dir -c /opt/raysim/constraints.txt /opt/raysim/*.whl
USER 1000
WORKDIR /home/ray
ENTRYPOINT ["raysim"]
